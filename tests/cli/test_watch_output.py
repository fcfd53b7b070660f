"""A watched listing is redrawn in a terminal and printed on changes in a pipe."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

from tests.cli.test_validate_command import _read

WATCH = """
import asyncio
from evenkeel.cli import watch_output
from evenkeel.cli.options import Output
from evenkeel.cli.terminal_output import Listing

watch_output._REFRESH_SECONDS = 0
stages = iter(("CatchingUp", "CatchingUp", "Stable"))

async def fetch():
    stage = next(stages, None)
    if stage is None:
        raise SystemExit(0)
    return Listing(("PARTITION", "STAGE", "AGE"), [(0, stage, "3s")], [stage], ["all is well"])

asyncio.run(watch_output.show(fetch, Output.TABLE, watch=True))
"""
ENVIRONMENT = {**{name: value for name, value in os.environ.items() if name != "NO_COLOR"}, "TERM": "xterm-256color"}


def test_terminal() -> None:
    """The table is redrawn in place, with colours."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", WATCH], stdout=theirs, stderr=theirs, stdin=theirs, env=ENVIRONMENT
    ) as child:
        os.close(theirs)
        shown = b""
        while chunk := _read(ours):
            shown += chunk
    os.close(ours)
    assert child.returncode == 0
    assert b"\x1b[33mCatchingUp" in shown
    assert b"\x1b[32mStable" in shown
    assert b"\x1b[1A\x1b[2K" in shown, "the cursor moves up and clears the line"
    assert b"Press Ctrl-C to stop" in shown


def test_pipe() -> None:
    """An unchanged listing is not printed again, and the output is plain text."""
    done = subprocess.run([sys.executable, "-c", WATCH], capture_output=True, text=True, check=True, env=ENVIRONMENT)
    assert done.stdout.splitlines() == [
        "PARTITION   STAGE        AGE",
        "0           CatchingUp   3s",
        "all is well",
        "PARTITION   STAGE    AGE",
        "0           Stable   3s",
        "all is well",
    ]
