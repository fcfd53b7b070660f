#!/usr/bin/env bash
# Resolves pyproject.toml into requirements.lock. Arguments go to pip-compile, `--upgrade` for one.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/lib.sh
. scripts/lib.sh

# A resolution on the oldest Python we serve also installs on the newer ones; the other way round it does not.
.venv/bin/python -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' ||
    die "the lock is resolved on Python 3.11, .venv has another: PYTHON=python3.11 make lock, after removing .venv"

compile() {
    CUSTOM_COMPILE_COMMAND="make lock" .venv/bin/python -m piptools compile --quiet --generate-hashes \
        --allow-unsafe --strip-extras --no-emit-index-url --no-emit-find-links --no-emit-trusted-host "$@"
}

say "resolving requirements.lock"
compile --extra cli --extra dev --output-file requirements.lock "$@" pyproject.toml
