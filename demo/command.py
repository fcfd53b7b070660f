"""Read and write a table while its replicas move, then verify every row.

FAST=1 uses fewer rows. The exit code is 0 if every acknowledged row exists.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rich.console import Console

from demo.screen import Screen
from demo.story import Size, run_story
from evenkeel.errors import EvenkeelError

__all__ = ["run"]

_REMOVAL_SECONDS: Final = 10.0
REPORT: Final = Path(__file__).parents[1] / "build" / "demo" / "report.html"


def run() -> int:
    """Run the demo; return the exit code."""
    parser = argparse.ArgumentParser(prog="demo", description=__doc__)
    fast = os.environ.get("FAST", "") not in ("", "0")
    parser.add_argument("--rows", type=int, default=100_000 if fast else 1_000_000, help="Number of rows to load.")
    parser.add_argument(
        "--quiet-seconds", type=float, default=4.0 if fast else 15.0, help="Duration of the undisturbed baseline."
    )
    parser.add_argument("--report", type=Path, default=REPORT, help="Path of the report.")
    given = parser.parse_args()
    console, began = Console(file=sys.stdout), time.monotonic()
    try:
        with _scratch() as folder:
            size = Size(rows=given.rows, quiet=given.quiet_seconds, wait_for_spread=not fast)
            screen = Screen(console, began=began)
            good = run_story(screen, size, folder=folder, report=given.report.resolve(), began=began)
    except EvenkeelError as error:
        Console(stderr=True).print(f"error: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        return 1
    console.print(f"{time.monotonic() - began:.0f} s in total; stores, etcd and their data have been removed")
    return 0 if good else 1


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    """Create a directory and remove it at the end, even while a stopping process still writes to it."""
    folder = Path(tempfile.mkdtemp(prefix="evenkeel-demo-"))
    try:
        yield folder
    finally:
        give_up = time.monotonic() + _REMOVAL_SECONDS
        while folder.exists() and time.monotonic() < give_up:
            shutil.rmtree(folder, ignore_errors=True)
