#!/usr/bin/env bash
# Resolves pyproject.toml into requirements.lock and the locks of the images and benchmarks. Arguments, such as --upgrade, are
# passed to pip-compile.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/lib.sh
. scripts/lib.sh

# A lock resolved on the oldest supported Python usually installs on newer ones, but not the other way round.
.venv/bin/python -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' ||
    die "the lock must be resolved on Python 3.11, but .venv has another: remove .venv and run PYTHON=python3.11 make lock"

compile() {
    local output=$1
    shift
    say "resolving $output"
    CUSTOM_COMPILE_COMMAND="make lock" .venv/bin/python -m piptools compile --quiet --generate-hashes \
        --allow-unsafe --strip-extras --no-emit-index-url --no-emit-find-links --no-emit-trusted-host \
        --output-file "$output" "$@" pyproject.toml
}

# Checks patch versions, because packages depend on them (Debian 12 has 3.11.2), and that no package needs a compiler.
check() {
    say "checking that it installs on Python $1"
    .venv/bin/python -m pip install --quiet --dry-run --ignore-installed --target build/lock-check --no-deps \
        --only-binary :all: --python-version "$1" --require-hashes --requirement requirements.lock
}

compile requirements.lock --extra cli --extra dev --extra operator --extra sidecar --extra store "$@"
compile requirements-spark.lock --extra spark --constraint requirements.lock
# Images contain only versions that were tested.
compile images/operator.lock --extra cli --extra operator --constraint requirements.lock
compile images/store.lock --extra sidecar --extra store --constraint requirements.lock
compile bench/requirements.lock --extra bench --constraint requirements.lock
for version in 3.11.2 3.12.0 3.13.0; do check "$version"; done
