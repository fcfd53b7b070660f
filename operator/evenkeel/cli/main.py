"""Entry point: the one place where errors become exit codes.

An error under EvenkeelError is the user's to read, so it is printed as it is, without a traceback. Anything else is a
defect of Evenkeel, and its traceback is wanted.
"""

from __future__ import annotations

import sys

from evenkeel.errors import EvenkeelError

__all__ = ["main"]


def main() -> None:
    """Run the command line."""
    try:
        from evenkeel.cli.app import app  # noqa: PLC0415 - typer and rich belong to an extra
    except ModuleNotFoundError as error:
        sys.exit(f"{error}. The command line needs more packages: pip install 'evenkeel-operator[cli]'")
    try:
        app()
    except EvenkeelError as error:
        sys.exit(f"error: {error}")
