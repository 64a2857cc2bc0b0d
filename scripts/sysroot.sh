# The libraries that the aarch64 preset links: Debian's arm64 packages, unpacked into a folder. This
# machine's own packages stay as they are: the -dev ones of two architectures do not always go
# together, and another architecture for dpkg is not ours to add. Sourced, never run.
# shellcheck shell=bash source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/fetch.sh"

# Exports HEADSTART_SYSROOT, which the CMake presets read. A folder given from outside is kept.
ensure_sysroot() {
  [[ -z ${HEADSTART_SYSROOT:-} ]] || return 0
  local key
  key=$(grep -E '^arm64 ' "$root/scripts/packages.txt" | sha256sum)
  export HEADSTART_SYSROOT="$cache/sysroot/arm64-${key:0:16}"
  [[ -d $HEADSTART_SYSROOT ]] || with_lock "$cache/sysroot/.lock" fetch_sysroot
}

# apt takes the machine's sources, keeps its lists in a folder of ours and believes that this is an
# arm64 machine on which nothing is installed. It needs no root for that.
fetch_sysroot() {
  [[ ! -d $HEADSTART_SYSROOT ]] || return 0
  command -v apt-get >/dev/null ||
    die "this is not Debian; set HEADSTART_SYSROOT to a folder with the libraries for arm64 of scripts/packages.txt"
  local packages package apt
  packages=$(package_names arm64)
  say "fetching Debian packages for arm64 (9 MB, and 20 MB of lists): ${packages//$'\n'/ }"
  begin_fetch "$cache/sysroot/.fetch-arm64"
  mkdir -p "$work"/{lists,archives}/partial "$work/root"
  apt=(apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures=arm64
    -o Dir::State="$work" -o Dir::State::status=/dev/null -o Dir::Cache="$work"
    -o APT::Sandbox::User=root -o Acquire::Languages=none)
  # shellcheck disable=SC2086  # one word a package
  { "${apt[@]}" update && (cd "$work/archives" && "${apt[@]}" download $packages); } >&2 </dev/null ||
    die "apt-get could not fetch them (see above); nothing is kept, mend that, then try again"
  for package in "$work"/archives/*.deb; do
    dpkg-deb -x "$package" "$work/root" || die "could not unpack ${package##*/}; check the free disk space"
  done
  mv -T "$work/root" "$HEADSTART_SYSROOT"
}
