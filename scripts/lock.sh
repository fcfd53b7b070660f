#!/usr/bin/env bash
# Resolves pyproject.toml into requirements.lock, and into one lock per image. Arguments go to pip-compile, `--upgrade`
# for one.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/lib.sh
. scripts/lib.sh

# A resolution on the oldest Python we serve also installs on the newer ones; the other way round it does not.
.venv/bin/python -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' ||
    die "the lock is resolved on Python 3.11, .venv has another: PYTHON=python3.11 make lock, after removing .venv"

compile() {
    local output=$1
    shift
    say "resolving $output"
    CUSTOM_COMPILE_COMMAND="make lock" .venv/bin/python -m piptools compile --quiet --generate-hashes \
        --allow-unsafe --strip-extras --no-emit-index-url --no-emit-find-links --no-emit-trusted-host \
        --output-file "$output" "$@" pyproject.toml
}

compile requirements.lock --extra cli --extra dev "$@"
# An image has what was tested, and no more.
compile images/operator.lock --extra cli --constraint requirements.lock
