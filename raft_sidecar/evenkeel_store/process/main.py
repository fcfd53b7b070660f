"""The command `evenkeel-store`. Errors that a user can fix are one line, without a traceback."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence

from evenkeel.errors import EvenkeelError
from evenkeel.runtime.log_setup import set_up_logs
from evenkeel_store.process.options import parse_options
from evenkeel_store.process.store_process import run_store

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a store; returns the exit status."""
    try:
        options = parse_options(sys.argv[1:] if arguments is None else arguments, os.environ)
        set_up_logs(level=options.log_level, form=options.log_format, store=options.store)
        asyncio.run(run_store(options))
    except EvenkeelError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
