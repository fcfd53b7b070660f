#!/usr/bin/env bash
# Builds servers and tools from the Go modules that binaries/ pins, into the cache; a no-op for each that is there.
#
#   scripts/build-binaries.sh etcd            # what local mode and the tests need
#   scripts/build-binaries.sh cluster         # all that a Kubernetes of one's own needs (e2e/cluster)
#   scripts/build-binaries.sh kwok helm       # any folders of binaries/
#
# Takes a minute or two for etcd, about ten for a cluster, and, the first time, the Go module registry.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/lib.sh
. scripts/lib.sh

readonly CLUSTER=(etcd kubernetes coredns pause helm)

# The one module that a go.mod requires directly is the one it is there for; a program of our own is its source.
version_of() {
    local version
    version=$(pinned_version "$1")
    echo "${version:-$(sha256sum "binaries/$1/main.go" | cut -c 1-12)}"
}

pinned_version() { sed -n 's|^require [^ ]* v\([^ ]*\)$|\1|p' "binaries/$1/go.mod"; }

# A folder is a program of its own, or its tools.go lists the programs of the module.
packages_of() {
    if [ -f "binaries/$1/tools.go" ]; then
        sed -n 's|^[[:space:]]*_ "\(.*\)"$|\1|p' "binaries/$1/tools.go"
    else
        echo .
    fi
}

# program_of FOLDER PACKAGE HOW_MANY
program_of() { if [ "$3" = 1 ]; then echo "$1"; else basename "$2"; fi; }

# Some programs learn their version only when they are linked, and Helm refuses an API server that has none.
version_flags() {
    local version=$2 base=k8s.io/component-base/version major minor
    IFS=. read -r major minor _ <<<"$version"
    case $1 in
        kubernetes) echo "-X $base.gitVersion=v$version -X $base.gitMajor=$major -X $base.gitMinor=$minor" ;;
        helm) echo "-X helm.sh/helm/v3/internal/version.version=v$version" ;;
    esac
}

# Bash says 126 of what is there but made for another machine.
runs() {
    local status=0
    [ -x "$1" ] || return 1
    "$1" --help </dev/null >/dev/null 2>&1 || status=$?
    [ "$status" != 126 ]
}

need_go() {
    # Since 1.21, Go fetches by itself the toolchain that go.mod names; an older one cannot even read it.
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
    # Beside the target, so that the rename is atomic: whoever looks meanwhile finds a whole binary or none.
    partial=$(mktemp "$target.XXXXXX")
    trap 'rm -f "$partial"' EXIT
    # Minutes of both cores: whoever works at this machine goes first.
    (cd "binaries/$folder" && CGO_ENABLED=0 nice -n 10 go build -trimpath \
        -ldflags="-s -w $(version_flags "$folder" "$version")" -o "$partial" "$package")
    chmod 755 "$partial"
    mv "$partial" "$target"
    trap - EXIT
}

make_all_of() {
    local folder=$1 version package packages target
    [ -f "binaries/$folder/go.mod" ] || die "binaries/ has no $folder; it has: $(cd binaries && echo *), and cluster for several"
    version=$(version_of "$folder")
    mapfile -t packages < <(packages_of "$folder")
    for package in "${packages[@]}"; do
        target=$(cache_dir)/bin/$folder-$version/$(program_of "$folder" "$package" "${#packages[@]}")
        if runs "$target"; then
            say "$(basename "$target") $version is there: $target"
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
