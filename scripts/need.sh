#!/usr/bin/env bash
# Checks that the required tools and disk space are available.
#
#   scripts/need.sh python openssl disk=1024 go java
#
# As root it installs missing tools with apt; otherwise it prints the command to run.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=scripts/lib.sh
. "$here/lib.sh"

# Since 1.21, Go downloads the toolchain that a module requires.
readonly OLDEST_GO=1.21
readonly OLDEST_JAVA=17

at_least() { [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]; }

have_go() {
    local version
    version=$(go env GOVERSION 2>/dev/null) && at_least "${version#go}" "$OLDEST_GO"
}

have_java() {
    local version
    version=$("${JAVA_HOME:+$JAVA_HOME/bin/}java" -version 2>&1 | sed -n 's/.*version "\([0-9.]*\).*/\1/p') && at_least "${version:-0}" "$OLDEST_JAVA"
}

have() {
    case $1 in
        python) find_python >/dev/null ;;
        go) have_go ;;
        java) have_java ;;
        cni) [ -x /usr/lib/cni/bridge ] || [ -x /opt/cni/bin/bridge ] ;;
        *) command -v "$1" >/dev/null ;;
    esac
}

describe() {
    case $1 in
        python) echo "Python >= 3.11 with venv and ensurepip" ;;
        go) echo "Go >= $OLDEST_GO" ;;
        java) echo "Java >= $OLDEST_JAVA" ;;
        cni) echo "CNI plugins" ;;
        *) echo "$1" ;;
    esac
}

package() {
    case $1 in
        python) echo "python3 python3-venv" ;;
        go) echo "golang-go" ;;
        java) echo "openjdk-17-jre-headless" ;;
        cni) echo "containernetworking-plugins" ;;
        ip) echo "iproute2" ;;
        nsenter | unshare) echo "util-linux" ;;
        *) echo "$1" ;;
    esac
}

check_disk() {
    local wanted=$1 free
    free=$(df -Pm . | awk 'NR == 2 { print $4 }')
    [ "$free" -ge "$wanted" ] || die "$PWD has $free MiB free, $wanted MiB are needed: free disk space and run this again"
}

describe_all() {
    local what text=""
    for what in "$@"; do text+="${text:+, }$(describe "$what")"; done
    echo "$text"
}

apt_install() {
    export DEBIAN_FRONTEND=noninteractive
    say "installing with apt: $*"
    apt-get update -qq </dev/null >&2
    apt-get install -qq -y --no-install-recommends "$@" </dev/null >&2
}

collect_missing() {
    local what
    missing=()
    for what in "$@"; do have "$what" || missing+=("$what"); done
}

wanted=()
for argument in "$@"; do
    case $argument in
        disk=*) check_disk "${argument#disk=}" ;;
        *) wanted+=("$argument") ;;
    esac
done

collect_missing "${wanted[@]}"
[ ${#missing[@]} -gt 0 ] || exit 0
lacking=$(describe_all "${missing[@]}")
command -v apt-get >/dev/null || die "missing: $lacking; install it with this system's package manager"

packages=()
for what in "${missing[@]}"; do read -ra names <<<"$(package "$what")"; packages+=("${names[@]}"); done
if [ "$(id -u)" != 0 ]; then
    die "missing: $lacking; run: sudo apt-get install -y ${packages[*]}"
fi
apt_install "${packages[@]}"

collect_missing "${missing[@]}"
[ ${#missing[@]} -eq 0 ] ||
    die "the system's packages are too old for: $(describe_all "${missing[@]}"); install it from its website"
