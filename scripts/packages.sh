# Set-up: installs the Debian packages of packages.txt that are missing. Sourced, never run.
# shellcheck shell=bash source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# need_packages GROUP...: silent and quick where nothing is missing.
need_packages() {
  if ! command -v dpkg-query >/dev/null; then
    say "note: this is not Debian; scripts/packages.txt lists what must be installed ($*)"
    return
  fi
  local missing
  missing=$(missing_packages "$@")
  [[ -z $missing ]] || with_lock "$cache/.lock-packages" install_packages "$@"
}

# package_names GROUP...: one a line.
package_names() {
  awk -v groups=" $* " '!/^#/ && index(groups, " " $1 " ") && !seen[$2]++ { print $2 }' \
    "$root/scripts/packages.txt"
}

missing_packages() {
  local wanted installed package
  wanted=$(package_names "$@")
  # shellcheck disable=SC2086  # one word a package
  installed=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' $wanted 2>/dev/null |
    sed -n 's/^installed //p') || true # dpkg-query fails where it does not know a package
  for package in $wanted; do
    grep -qxF "$package" <<<"$installed" || printf '%s ' "$package"
  done
}

# Looks again under the lock: another run may have installed them meanwhile.
install_packages() {
  local missing by_hand as_root=()
  missing=$(missing_packages "$@")
  [[ -n $missing ]] || return 0
  by_hand="apt-get update && apt-get install -y --no-install-recommends $missing"
  if ((EUID != 0)); then
    can_sudo || die "Debian packages are missing; run this as root, then try again:"$'\n'"  $by_hand"
    as_root=(sudo)
  fi
  local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive
    apt-get -qq -o DPkg::Lock::Timeout=600)
  say "installing Debian packages: $missing"
  # shellcheck disable=SC2086  # one word a package
  { "${apt[@]}" update && "${apt[@]}" install -y --no-install-recommends $missing; } >&2 </dev/null ||
    die "apt-get failed (see above); mend that, or run this as root:"$'\n'"  $by_hand"
}

# Without a terminal sudo must not ask for a password.
can_sudo() {
  command -v sudo >/dev/null && { [[ -t 0 ]] || sudo -n true 2>/dev/null; }
}
