# Configures and builds the tree of one CMake preset. Sourced, never run.
# shellcheck shell=bash source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/sysroot.sh"

# Another checkout of the same source finds its objects in ccache.
export CCACHE_BASEDIR=$root CCACHE_NOHASHDIR=1
export CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}

# build_tree PRESET TARGET: tests are always part of the configuration, so that `build` and `test`
# share one tree and differ in the target only.
build_tree() {
  need_packages build
  ensure_source
  if [[ $1 == release-openblas ]]; then need_packages openblas; fi
  if [[ $1 == aarch64 ]]; then
    need_packages aarch64
    ensure_sysroot
  fi
  with_lock "$root/build/.lock-$1" configure_and_compile "$1" "$2"
}

configure_and_compile() {
  local preset=$1 target=$2
  cd "$root" || exit
  if [[ -f build/$preset/build.ninja ]]; then
    configure "$preset" >"build/configure-$preset.log" 2>&1 || {
      cat "build/configure-$preset.log" >&2
      configure_failed "$preset"
    }
  else
    say "configuring $preset; ggml and libllama are built now unless the cache has them: some minutes"
    configure "$preset" >&2 || configure_failed "$preset"
  fi
  sanitizer_safe "$preset" cmake --build "build/$preset" --target "$target" >&2 ||
    die "the build of $preset failed (see above)"
}

configure() { sanitizer_safe "$1" cmake --preset "$1"; }

configure_failed() {
  die "cmake could not configure $1 (see above); after a change of compiler try ./run clean first"
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
