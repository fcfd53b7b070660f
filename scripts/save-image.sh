#!/usr/bin/env bash
# Writes an image of the container engine to an archive that `ctr` and `kind` can read:
#
#   scripts/save-image.sh localhost/evenkeel-operator:0.1 operator.tar
#   scripts/save-image.sh localhost/evenkeel-operator:0.1               # only prints its digest
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/lib.sh
. scripts/lib.sh
# shellcheck source=scripts/engine.sh
. scripts/engine.sh

: "${ENGINE:=$(find_engine)}"
has_image "$1" || die "$ENGINE has no image $1: build it first (make images)"
if [ $# = 1 ]; then image_digest "$1"; else save_image "$1" "$2"; fi
