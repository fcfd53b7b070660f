# Functions of the other scripts; sourced, never run.
# shellcheck shell=bash

say() { printf '\033[1m==>\033[0m %s\n' "$*" >&2; }
die() { printf '\033[1;31merror:\033[0m %s\n' "$*" >&2; exit 1; }

# No colours unless standard error is a terminal.
if [ ! -t 2 ]; then
    say() { printf '==> %s\n' "$*" >&2; }
    die() { printf 'error: %s\n' "$*" >&2; exit 1; }
fi

# Runs each candidate: version managers put shims on PATH that only print an error, and Debian packages venv and
# ensurepip separately.
find_python() {
    local name
    for name in ${PYTHON:+"$PYTHON"} python3.13 python3.12 python3.11 python3; do
        if "$name" -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
            command -v "$name"
            return
        fi
    done
    return 1
}

cache_dir() { printf '%s\n' "${EVENKEEL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/evenkeel}"; }
