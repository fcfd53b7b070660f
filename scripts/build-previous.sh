#!/usr/bin/env bash
# Builds the images of the previous release, whose commit is in tests/process/PREVIOUS_RELEASE, for tests of rolling updates.
# Its source, with the chart, goes to build/previous; the tags go to build/images/previous-NAME.tag.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/lib.sh
. scripts/lib.sh

readonly SOURCE=build/previous
commit=${EVENKEEL_PREVIOUS:-$(cat tests/process/PREVIOUS_RELEASE)}
git cat-file -e "$commit^{commit}" 2>/dev/null ||
    die "the previous release, commit $commit, is not in this checkout: get the whole history with git fetch --unshallow"

say "building the images of $commit"
rm -rf "$SOURCE" && mkdir -p "$SOURCE" build/images
git archive --format=tar "$commit" | tar --extract --directory "$SOURCE"
# Its script uses .venv only for pip and the build backend.
ln -s "$PWD/.venv" "$SOURCE/.venv"
for name in operator store; do
    "$SOURCE/scripts/build-image.sh" "$name"
    cp "$SOURCE/build/images/$name.tag" "build/images/previous-$name.tag"
done
