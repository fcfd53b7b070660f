#!/usr/bin/env bash
# Builds servers and tools from the Go modules pinned in binaries/ into the cache; skips those that exist.
#
#   scripts/build-binaries.sh etcd            # for local mode and the tests
#   scripts/build-binaries.sh cluster         # for a Kubernetes on this machine (e2e/cluster)
#   scripts/build-binaries.sh kwok helm       # any folders of binaries/
#
# Takes a minute or two for etcd and about ten for a cluster. The first time it needs the Go module registry.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/lib.sh
. scripts/lib.sh

readonly CLUSTER=(etcd kubernetes coredns pause helm)

# The version of the module that go.mod requires directly, or a hash of the source of our own programs.
version_of() {
    local version
    version=$(pinned_version "$1")
    echo "${version:-$(sha256sum "binaries/$1/main.go" | cut -c 1-12)}"
}

pinned_version() { sed -n 's|^require [^ ]* v\([^ ]*\)$|\1|p' "binaries/$1/go.mod"; }

# The programs that tools.go lists, or the folder itself.
packages_of() {
    if [ -f "binaries/$1/tools.go" ]; then
        sed -n 's|^[[:space:]]*_ "\(.*\)"$|\1|p' "binaries/$1/tools.go"
    else
        echo .
    fi
}

# program_of FOLDER PACKAGE HOW_MANY
program_of() { if [ "$3" = 1 ]; then echo "$1"; else basename "$2"; fi; }

# Some programs get their version from linker flags, and Helm refuses an API server without a version.
version_flags() {
    local version=$2 base=k8s.io/component-base/version major minor
    IFS=. read -r major minor _ <<<"$version"
    case $1 in
        kubernetes) echo "-X $base.gitVersion=v$version -X $base.gitMajor=$major -X $base.gitMinor=$minor" ;;
        helm) echo "-X helm.sh/helm/v3/internal/version.version=v$version" ;;
    esac
}

# Bash returns 126 for a binary of another architecture.
runs() {
    local status=0
    [ -x "$1" ] || return 1
    "$1" --help </dev/null >/dev/null 2>&1 || status=$?
    [ "$status" != 126 ]
}

need_go() {
    # Since 1.21, Go downloads the toolchain that go.mod requires; an older Go cannot parse that line.
    local oldest=1.21 found
    found=$(go env GOVERSION 2>/dev/null) || die "Go is missing: install Go >= $oldest (https://go.dev/dl), then run again"
    [ "$(printf '%s\n' "$oldest" "${found#go}" | sort -V | head -n 1)" = "$oldest" ] ||
        die "Go ${found#go} is too old: install Go >= $oldest (https://go.dev/dl), then run again"
}

# build FOLDER PACKAGE VERSION TARGET
build() {
    local folder=$1 package=$2 version=$3 target=$4 partial
    need_go
    say "building $(basename "$target") $version with $(go env GOVERSION) into $target"
    mkdir -p "$(dirname "$target")"
    # In the same directory as the target, so that the rename is atomic.
    partial=$(mktemp "$target.XXXXXX")
    trap 'rm -f "$partial"' EXIT
    # The build takes minutes of CPU time; give way to interactive work.
    (cd "binaries/$folder" && CGO_ENABLED=0 nice -n 10 go build -trimpath \
        -ldflags="-s -w $(version_flags "$folder" "$version")" -o "$partial" "$package")
    chmod 755 "$partial"
    mv "$partial" "$target"
    trap - EXIT
}

make_all_of() {
    local folder=$1 version package packages target
    [ -f "binaries/$folder/go.mod" ] || die "unknown binary $folder; allowed: $(cd binaries && echo *), cluster"
    version=$(version_of "$folder")
    mapfile -t packages < <(packages_of "$folder")
    for package in "${packages[@]}"; do
        target=$(cache_dir)/bin/$folder-$version/$(program_of "$folder" "$package" "${#packages[@]}")
        if runs "$target"; then
            say "$(basename "$target") $version exists: $target"
        else
            build "$folder" "$package" "$version" "$target"
        fi
    done
}

folders=()
for name in "$@"; do
    if [ "$name" = cluster ]; then folders+=("${CLUSTER[@]}"); else folders+=("$name"); fi
done
for folder in "${folders[@]}"; do make_all_of "$folder"; done
