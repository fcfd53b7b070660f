#!/usr/bin/env bash
# Builds a base image from Debian packages, for machines that reach a Debian mirror but no container registry.
# The arguments are packages to install besides Python. Prints the name of the image.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/lib.sh
. scripts/lib.sh
# shellcheck source=scripts/engine.sh
. scripts/engine.sh

# Debian 12 has the same Python, 3.11, as the public base image.
readonly SUITE=bookworm
readonly TAG=localhost/evenkeel-base:$SUITE${1:+-$1}
packages=$(IFS=,; echo "python3,python3-venv,ca-certificates${*:+,$*}")
: "${ENGINE:=$(find_engine)}"

# The Debian mirror that this machine uses, if any.
mirror() {
    # shellcheck disable=SC2016  # apt expands these
    apt-get indextargets --format '$(REPO_URI) $(RELEASE)' 'Created-By: Packages' 2>/dev/null |
        awk -v suite="$SUITE" '$2 == suite { print $1; exit }'
}

if ! has_image "$TAG"; then
    [ "$(id -u)" = 0 ] || die "building a base image without a registry needs root: run this as root, or set BASE=<image>"
    scripts/need.sh disk=2048 debootstrap unshare
    work=$(mktemp -d)
    trap 'rm -rf --one-file-system "$work"' EXIT
    source=$(mirror)
    say "building $TAG with debootstrap"
    # A separate mount namespace: packages mount /proc in the tree, and a leftover mount would prevent its removal.
    unshare --mount --propagation private debootstrap --variant=minbase --include="$packages" \
        "$SUITE" "$work/tree" "${source:-https://deb.debian.org/debian}" >"$work/log" 2>&1 ||
        die "debootstrap failed: $(tail -n 3 "$work/log")"
    rm -rf "$work"/tree/var/cache/apt/* "$work"/tree/var/lib/apt/lists/*
    tar --directory "$work/tree" --create --file "$work/root.tar" --exclude './dev/*' --exclude './proc/*' .
    rm -rf --one-file-system "$work/tree"
    printf 'FROM scratch\nADD root.tar /\n' >"$work/Containerfile"
    build_image "$TAG" "$work/Containerfile" "$work"
fi
echo "$TAG"
