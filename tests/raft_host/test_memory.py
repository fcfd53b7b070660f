"""Garbage in a process with many groups."""

from __future__ import annotations

import subprocess
import sys

CHILD = """
import gc
from evenkeel.runtime.gc_tuning import relax_gc
relax_gc()
looks = [0, 0, 0]
gc.callbacks.append(lambda phase, about: looks.__setitem__(about["generation"], looks[about["generation"]] + 1))
kept = [[[] for _ in range(100)] for _ in range(10_000)]
for _ in range(10_000):
    cycle = []
    cycle.append(cycle)
print(looks, gc.get_count())
assert looks[0] > 50 and looks[2] == 0
"""


def test_what_came_to_stay_is_left_alone() -> None:
    """A million objects come and stay without one look at all of them, while the young ones are looked at."""
    done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
