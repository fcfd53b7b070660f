"""Entry points of `evenkeel` and `kubectl evenkeel`: errors become exit codes here.

An EvenkeelError is printed without a traceback. Any other exception is a bug and keeps its traceback.
"""

from __future__ import annotations

import sys
from importlib import import_module

from evenkeel.errors import EvenkeelError

__all__ = ["kubectl", "main"]


def main() -> None:
    """Run `evenkeel`."""
    _run("app", extra="cli")


def kubectl() -> None:
    """Run `kubectl evenkeel`."""
    _run("plugin", extra="kubectl")


def _run(program: str, *, extra: str) -> None:
    try:
        commands = import_module("evenkeel.cli.app")
        getattr(commands, program)()
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("evenkeel"):
            raise
        sys.exit(f"error: {error}; install the missing packages with: pip install 'evenkeel-operator[{extra}]'")
    except EvenkeelError as error:
        sys.exit(f"error: {error}")
