"""The command: tell the story; FAST=1 tells it with fewer rows. Exit code 0 if every acknowledged row is there."""

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
from demo.story import Size, tell
from evenkeel.errors import EvenkeelError

__all__ = ["run"]

_REMOVAL_SECONDS: Final = 10.0
REPORT: Final = Path(__file__).parents[1] / "build" / "demo" / "report.html"


def run() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="demo", description=__doc__)
    fast = os.environ.get("FAST", "") not in ("", "0")
    parser.add_argument("--rows", type=int, default=100_000 if fast else 1_000_000, help="rows to load")
    parser.add_argument("--quiet-seconds", type=float, default=4.0 if fast else 15.0, help="how long nothing happens")
    parser.add_argument("--report", type=Path, default=REPORT, help="where the report goes")
    given = parser.parse_args()
    console, began = Console(file=sys.stdout), time.monotonic()
    try:
        with _scratch() as folder:
            size = Size(rows=given.rows, quiet=given.quiet_seconds, patient=not fast)
            screen = Screen(console, began=began)
            good = tell(screen, size, folder=folder, report=given.report.resolve(), began=began)
    except EvenkeelError as error:
        Console(stderr=True).print(f"error: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        return 1
    console.print(f"{time.monotonic() - began:.0f} s in all; stores, etcd and all their data are gone again")
    return 0 if good else 1


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    """Make a folder, and remove it in the end, even while a process that is ending still writes to it."""
    folder = Path(tempfile.mkdtemp(prefix="evenkeel-demo-"))
    try:
        yield folder
    finally:
        give_up = time.monotonic() + _REMOVAL_SECONDS
        while folder.exists() and time.monotonic() < give_up:
            shutil.rmtree(folder, ignore_errors=True)
