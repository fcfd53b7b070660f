#!/usr/bin/env bash
# Puts the script that draws the diagrams of the documentation into build/docs-static; `make docs` calls it.
# npm fetches the pinned package and the checksum below verifies it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/lib.sh
. scripts/lib.sh

readonly VERSION=12.3.0
readonly INTEGRITY=4113TdXeLAsMruJ79OpFL5O8+LTFXhQqZ260rF3tgUmiNAtRm4Uume04I+65PRN6yZ69J4f8rVYWW8zRk65UYw==
readonly TARGET=build/docs-static/mermaid-$VERSION.min.js

[ -f "$TARGET" ] && exit 0
scripts/need.sh npm openssl
say "fetching mermaid $VERSION, which draws the diagrams"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
npm pack --silent --pack-destination "$work" "mermaid@$VERSION" >/dev/null
archive=$work/mermaid-$VERSION.tgz
[ "$(openssl dgst -sha512 -binary "$archive" | openssl base64 -A)" = "$INTEGRITY" ] ||
    die "the package mermaid $VERSION is not the one that was pinned: check the registry, or correct scripts/fetch-mermaid.sh"
tar --extract --gzip --file "$archive" --directory "$work" package/dist/mermaid.min.js
mkdir -p "$(dirname "$TARGET")"
mv "$work/package/dist/mermaid.min.js" "$TARGET"
