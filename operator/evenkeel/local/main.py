"""Entry point of the supervisor: `python -m evenkeel.local.main DIRECTORY [PID]`, run by `evenkeel local up`.

With a process id, the cluster stops when that process ends.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path

from evenkeel.errors import EvenkeelError
from evenkeel.local.supervisor import serve

__all__ = ["main"]


def main() -> int:
    """Run the cluster until SIGTERM or SIGINT; return the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    directory, *until = sys.argv[1:]
    try:
        asyncio.run(serve(Path(directory), until=int(until[0]) if until else None))
    except EvenkeelError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
