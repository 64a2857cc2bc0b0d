# What every verb uses: where things lie, messages, errors, locks. Sourced, never run.
# Each file sources the one below it: lib.sh, packages.sh, fetch.sh, sysroot.sh,
# tree.sh.
# shellcheck shell=bash
# shellcheck disable=SC2034  # root and cache are read by the files that source this one
#
#   root    this checkout
#   cache   what outlives a checkout: fetched source, built dependencies, models
shopt -s inherit_errexit

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# Messages go to stderr: stdout is kept for results (`./run model` prints a path there).
say() { printf '%s\n' "$*" >&2; }

die() {
  say "error: $*"
  exit 1
}

usage_error() {
  say "error: $*"
  exit 2
}

if [[ -z ${XDG_CACHE_HOME:-} && -z ${HOME:-} ]]; then
  die "neither HOME nor XDG_CACHE_HOME is set; set HOME to a folder that you can write to"
fi
cache=${XDG_CACHE_HOME:-$HOME/.cache}/headstart

# with_lock FILE COMMAND...: at most one process at a time runs a command under FILE.
# The kernel drops the lock with the process, so an interrupted run leaves none behind.
with_lock() {
  local file=$1
  shift
  mkdir -p "${file%/*}" || die "cannot write to ${file%/*}; make it yours, or set XDG_CACHE_HOME"
  (
    if ! flock -n 9; then
      say "waiting for another ./run, which holds $file"
      flock 9
    fi
    "$@"
  ) 9>"$file"
}

# has_sha256 FILE SHA256
has_sha256() {
  local sum
  sum=$(sha256sum <"$1")
  [[ ${sum%% *} == "$2" ]]
}
