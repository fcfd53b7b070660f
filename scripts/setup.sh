#!/usr/bin/env bash
# Makes .venv what requirements.lock and pyproject.toml say. Quick when it already is: every make target calls it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/lib.sh
. scripts/lib.sh

readonly STAMP=.venv/.made-from

# The directory is part of it: a virtual environment does not survive being moved.
made_from() { { cat requirements.lock pyproject.toml scripts/setup.sh; pwd; } | sha256sum | cut -d ' ' -f 1; }

up_to_date() { [ -x .venv/bin/python ] && [ "$(cat "$STAMP" 2>/dev/null)" = "$(made_from)" ]; }

# An environment made elsewhere, or by a Python that is gone, is made anew; any other is brought up to date in place.
usable() { [ -x .venv/bin/python ] && [ "$(.venv/bin/python -c 'import sys; print(sys.prefix)')" = "$PWD/.venv" ]; }

up_to_date && exit 0
exec 9<.
flock 9
up_to_date && exit 0

scripts/need.sh disk=1024 python openssl
if ! usable; then
    python=$(find_python)
    say "making .venv with $("$python" --version)"
    "$python" -m venv --clear .venv
fi
say "installing what requirements.lock pins"
export PIP_DISABLE_PIP_VERSION_CHECK=1
.venv/bin/python -m pip install --quiet --require-hashes --requirement requirements.lock
.venv/bin/python -m pip install --quiet --no-deps --no-build-isolation --editable .
made_from >"$STAMP"
