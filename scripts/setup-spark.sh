#!/usr/bin/env bash
# Installs Spark into .venv from requirements-spark.lock. It is separate because it is as large as everything else together.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/lib.sh
. scripts/lib.sh

readonly STAMP=.venv/.spark-made-from

# The stamp includes that of setup.sh, whose packages may replace those of Spark.
made_from() { cat requirements-spark.lock scripts/setup-spark.sh .venv/.made-from | sha256sum | cut -d ' ' -f 1; }

up_to_date() { [ "$(cat "$STAMP" 2>/dev/null)" = "$(made_from)" ]; }

scripts/need.sh java
up_to_date && exit 0
exec 9<.
flock 9
up_to_date && exit 0

scripts/need.sh disk=3072
say "installing Spark from requirements-spark.lock, about 450 MB"
export PIP_DISABLE_PIP_VERSION_CHECK=1
.venv/bin/python -m pip install --quiet --require-hashes --requirement requirements-spark.lock
made_from >"$STAMP"
