#!/usr/bin/env bash
# Builds the etcd server that local mode and the tests use where PATH has none, into the cache; a no-op when it is
# there. Takes a minute or two and, the first time, the Go module registry.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/lib.sh
. scripts/lib.sh

module=binaries/etcd
version=$(sed -n 's|^require go.etcd.io/etcd/server/v3 v\(.*\)$|\1|p' "$module/go.mod")
[ -n "$version" ] || die "$module/go.mod does not say which etcd to build"
target=$(cache_dir)/bin/etcd-$version/etcd

if [ -x "$target" ] && "$target" --version >/dev/null 2>&1; then
    say "etcd $version is there: $target"
    exit 0
fi

# Since 1.21, Go fetches by itself the toolchain that go.mod names; an older one cannot even read it.
oldest=1.21
found=$(go env GOVERSION 2>/dev/null) || die "Go is missing: install Go >= $oldest (https://go.dev/dl), then run again"
[ "$(printf '%s\n' "$oldest" "${found#go}" | sort -V | head -n 1)" = "$oldest" ] ||
    die "Go ${found#go} is too old to build etcd: install Go >= $oldest (https://go.dev/dl), then run again"

say "building etcd $version with ${found} into $target"
mkdir -p "$(dirname "$target")"
# Beside the target, so that the rename is atomic: whoever looks meanwhile finds a whole binary or none.
partial=$(mktemp "$target.XXXXXX")
trap 'rm -f "$partial"' EXIT
(cd "$module" && CGO_ENABLED=0 go build -trimpath -ldflags='-s -w' -o "$partial" .)
chmod 755 "$partial"
mv "$partial" "$target"
"$target" --version | head -n 1 >&2
