#!/usr/bin/env bash
# Pushes an image of the container engine to a registry and prints its new name:
#
#   scripts/push-image.sh localhost/evenkeel-operator:0.1 registry.example/team
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/lib.sh
. scripts/lib.sh
# shellcheck source=scripts/engine.sh
. scripts/engine.sh

: "${ENGINE:=$(find_engine)}"
has_image "$1" || die "$ENGINE has no image $1: build it first (make images)"
target=${2%/}/${1##*/}
push_image "$1" "$target" || die "$ENGINE cannot push $target: check that it is logged in to ${2%%/*}"
echo "$target"
