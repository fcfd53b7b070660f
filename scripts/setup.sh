#!/usr/bin/env bash
# Creates or updates .venv from requirements.lock and pyproject.toml. Every make target calls it, so it is fast if up to date.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/lib.sh
. scripts/lib.sh

readonly STAMP=.venv/.made-from

# The stamp includes the directory, because a virtual environment cannot be moved.
made_from() { { cat requirements.lock pyproject.toml scripts/setup.sh; pwd; } | sha256sum | cut -d ' ' -f 1; }

up_to_date() { [ -x .venv/bin/python ] && [ "$(cat "$STAMP" 2>/dev/null)" = "$(made_from)" ]; }

# An environment that was moved, or whose Python is gone, is created again; any other is updated in place.
usable() { [ -x .venv/bin/python ] && [ "$(.venv/bin/python -c 'import sys; print(sys.prefix)')" = "$PWD/.venv" ]; }

up_to_date && exit 0
exec 9<.
flock 9
up_to_date && exit 0

scripts/need.sh disk=1024 python openssl
if ! usable; then
    python=$(find_python)
    say "creating .venv with $("$python" --version)"
    "$python" -m venv --clear .venv
fi
say "installing the packages of requirements.lock"
export PIP_DISABLE_PIP_VERSION_CHECK=1
.venv/bin/python -m pip install --quiet --require-hashes --requirement requirements.lock
.venv/bin/python -m pip install --quiet --no-deps --no-build-isolation --editable .
made_from >"$STAMP"
