#!/usr/bin/env bash
# Adds Spark to .venv, as requirements-spark.lock says. Apart from the rest because it is as large as all of it together.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/lib.sh
. scripts/lib.sh

readonly STAMP=.venv/.spark-made-from

# The set-up of everything else comes first, and what it changes may change Spark's packages.
made_from() { cat requirements-spark.lock scripts/setup-spark.sh .venv/.made-from | sha256sum | cut -d ' ' -f 1; }

up_to_date() { [ "$(cat "$STAMP" 2>/dev/null)" = "$(made_from)" ]; }

scripts/need.sh java
up_to_date && exit 0
exec 9<.
flock 9
up_to_date && exit 0

scripts/need.sh disk=3072
say "installing Spark as requirements-spark.lock pins it, about 450 MB"
export PIP_DISABLE_PIP_VERSION_CHECK=1
.venv/bin/python -m pip install --quiet --require-hashes --requirement requirements-spark.lock
made_from >"$STAMP"
