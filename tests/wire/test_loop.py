"""What sidecars and state machines run on."""

from __future__ import annotations

import subprocess
import sys

PASSING_BY = """
import resource, sys
from evenkeel.runtime.event_loop import run
def pass_by():
    frames = [bytes([1]) * (1 << 20) for _ in range(16)]
async def main():
    for _ in range(3):
        pass_by()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        pass_by()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
if "plain" in sys.argv:
    import asyncio
    asyncio.run(main())
else:
    run(main())
"""


def faults(*arguments: str) -> int:
    command = [sys.executable, "-c", PASSING_BY, *arguments]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def test_pages_of_what_passes_by_are_used_again() -> None:
    """Megabytes that come and go do not fetch their pages from the system each time, as they would by default."""
    assert faults() < 1000 < faults("plain")
