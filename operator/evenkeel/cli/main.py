"""Entry point: the one place where errors become exit codes.

An error under EvenkeelError is the user's to read, so it is printed as it is, without a traceback. Anything else is a
defect of Evenkeel, and its traceback is wanted.
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
        sys.exit(f"{error}. This command needs more packages: pip install 'evenkeel-operator[{extra}]'")
    except EvenkeelError as error:
        sys.exit(f"error: {error}")
