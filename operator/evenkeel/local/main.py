"""Runs a local cluster: `python -m evenkeel.local.main DIRECTORY`; `evenkeel local up` starts it in the background."""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path

from evenkeel.errors import EvenkeelError
from evenkeel.local.supervisor import serve

__all__ = ["main"]


def main() -> int:
    """Run until told to stop."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        asyncio.run(serve(Path(sys.argv[1])))
    except EvenkeelError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
