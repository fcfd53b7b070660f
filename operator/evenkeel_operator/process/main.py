"""Entry point of `evenkeel-operator`; prints an error that the user can fix as one line, without a traceback."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Sequence

from evenkeel.errors import EvenkeelError
from evenkeel.runtime.log_setup import set_up_logs
from evenkeel_operator.process.operator_options import parse_options
from evenkeel_operator.process.operator_process import operate

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run an operator; return the exit status."""
    try:
        options = parse_options(sys.argv[1:] if arguments is None else arguments, os.environ)
        set_up_logs(level=options.log_level, form=options.log_format, operator=options.term.identity)
        # It logs every connection, and warns that it does not handle signals.
        logging.getLogger("kopf").setLevel(logging.ERROR)
        asyncio.run(operate(options))
    except EvenkeelError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
