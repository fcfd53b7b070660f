"""`python -m demo`: tell the story; FAST=1 tells it quickly."""

from __future__ import annotations

import asyncio
import os
import sys

from rich.console import Console

from demo.screen import Screen
from demo.story import tell
from evenkeel.errors import EvenkeelError


def main() -> int:
    """The exit code: 0 when the story came to its end."""
    console = Console()
    code = 0
    try:
        asyncio.run(tell(Screen(console), fast=os.environ.get("FAST", "") not in ("", "0")))
    except* EvenkeelError as group:
        for error in group.exceptions:
            Console(stderr=True).print(str(error), style="red", markup=False, highlight=False)
        code = 1
    except* KeyboardInterrupt:
        console.print("stopped; etcd and its data are gone again")
        code = 130
    return code


if __name__ == "__main__":
    sys.exit(main())
