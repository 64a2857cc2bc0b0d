# Configures and builds the tree of one CMake preset. Sourced, never run.
# shellcheck shell=bash source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/fetch.sh"

# Another checkout of the same source finds its objects in ccache.
export CCACHE_BASEDIR=$root CCACHE_NOHASHDIR=1
export CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}

# build_tree PRESET TARGET: tests are always part of the configuration, so that `build` and `test`
# share one tree and differ in the target only.
build_tree() {
  need_packages build
  ensure_source
  # The first configuring builds ggml and libllama into the cache that all checkouts share, once
  # for each sanitizer and once for the presets without any.
  local family=plain
  [[ $1 != [at]san ]] || family=$1
  with_lock "$cache/deps/.lock-$family" configure_tree "$1"
  with_lock "$root/build/.lock-$1" compile_tree "$1" "$2"
}

configure_tree() {
  local log="$root/build/configure-$1.log"
  mkdir -p "$root/build"
  cd "$root" || exit
  if [[ ! -f build/$1/build.ninja ]]; then
    say "configuring $1 (ggml and libllama are built now unless the cache has them: some minutes)"
    log=/dev/stderr
  fi
  sanitizer_safe "$1" cmake --preset "$1" >"$log" 2>&1 || {
    [[ $log == /dev/stderr ]] || cat "$log" >&2
    die "cmake could not configure $1 (see above); after a change of compiler try ./run clean first"
  }
}

compile_tree() {
  sanitizer_safe "$1" cmake --build "$root/build/$1" --target "$2" >&2 ||
    die "the build of $1 failed (see above)"
}

# sanitizer_safe PRESET COMMAND...: the sanitizers of this compiler's age lose their shadow memory
# to strong address randomisation, so their programs run without it where that is allowed.
sanitizer_safe() {
  local preset=$1
  shift
  if [[ $preset == [at]san ]] && setarch -R true 2>/dev/null; then
    setarch -R "$@"
  else
    "$@"
  fi
}
