#!/usr/bin/env bash
# Builds images/NAME.Containerfile unless an image with the same content exists: scripts/build-image.sh operator
# BASE=<image> selects another base; it must have the Python of images/NAME.lock.
#
# The tag, which is written to build/images/NAME.tag, ends in a digest of the content, so that two checkouts never use each
# other's images. The plain version is a second tag of the newest image.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/lib.sh
. scripts/lib.sh
# shellcheck source=scripts/engine.sh
. scripts/engine.sh

readonly NAME=$1
readonly CONTEXT=build/images/$NAME
PUBLIC_BASE=$(sed -n 's/^ARG BASE=//p' "images/$NAME.Containerfile")
readonly PUBLIC_BASE
# Debian packages that the image has besides those of its base.
PACKAGES=$(sed -n 's/^ARG PACKAGES=//p' "images/$NAME.Containerfile")
readonly PACKAGES
# The Spark image uses the lock of the tests.
LOCK=images/$NAME.lock
if [ ! -f "$LOCK" ]; then LOCK=requirements-$NAME.lock; fi
readonly LOCK

# Downloads wheels for the Python and the C library of the image, which may differ from those of this machine.
fetch_wheels() {
    local machine platforms=() minor
    machine=$(uname -m)
    for minor in 36 35 34 31 28 27 17; do platforms+=(--platform "manylinux_2_${minor}_${machine/arm64/aarch64}"); done
    .venv/bin/python -m pip download --quiet --require-hashes --requirement <(locked "$LOCK" 0) --no-deps \
        --only-binary :all: --python-version 3.11 --implementation cp "${platforms[@]}" --dest "$CONTEXT/wheels"
    if grep -q "^$SOURCE_ONLY==" "$LOCK"; then
        .venv/bin/python -m pip wheel --quiet --require-hashes --requirement <(locked "$LOCK" 1) --no-deps \
            --wheel-dir "$CONTEXT/wheels"
    fi
    .venv/bin/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir "$CONTEXT/wheels" .
}

# Published without a wheel; the wheel built from its source works with every Python.
readonly SOURCE_ONLY=pyspark
# locked LOCK 0|1: all packages but SOURCE_ONLY, or SOURCE_ONLY alone.
locked() { awk -v name="$SOURCE_ONLY==" -v wanted="$2" '/^[a-z]/ { is = index($0, name) == 1 } is == wanted' "$1"; }

choose_base() {
    if [ -n "${BASE:-}" ]; then
        echo "$BASE"
    elif pull_image "$PUBLIC_BASE"; then
        echo "$PUBLIC_BASE"
    else
        say "cannot pull $PUBLIC_BASE from a registry"
        # shellcheck disable=SC2086  # words
        scripts/base-image.sh $PACKAGES
    fi
}

digest() { sha256sum | cut -c 1-12; }

# made_from BASE
made_from() {
    pull_image "$1"
    { image_digest "$1"; cat "images/$NAME.Containerfile"; (cd "$CONTEXT" && sha256sum -- */*); } | digest
}

build() {
    local tag=$1 base=$2 program
    say "building $tag on $base with $ENGINE"
    build_image "$tag" "images/$NAME.Containerfile" "$CONTEXT" "BASE=$base"
    program=$(sed -n 's/^ENTRYPOINT \["\([^"]*\)"\]$/\1/p' "images/$NAME.Containerfile")
    if ! run_image "$tag" "$program" --help >/dev/null; then
        remove_image "$tag"
        die "$program --help fails in $tag"
    fi
    say "$program runs in $tag"
}

ENGINE=$(find_engine)
export ENGINE
version=$(.venv/bin/python -c 'from importlib.metadata import version; print(version("evenkeel-operator"))')
repository=localhost/evenkeel-$NAME

say "collecting wheels in $CONTEXT"
rm -rf "$CONTEXT" "$CONTEXT.tag" && mkdir -p "$CONTEXT/wheels"
fetch_wheels
if [ -d "images/$NAME" ]; then cp -r "images/$NAME" "$CONTEXT/files"; fi
base=$(choose_base)
tag=$repository:$version-$(made_from "$base")
if has_image "$tag"; then say "$tag exists"; else build "$tag" "$base"; fi
tag_image "$tag" "$repository:$version"
forget_old_images "$repository"
echo "$tag" | tee "$CONTEXT.tag"
