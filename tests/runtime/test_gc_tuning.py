"""Garbage collection in a process with many long-lived objects."""

from __future__ import annotations

import subprocess
import sys

CHILD = """
import gc
from evenkeel.runtime.gc_tuning import relax_gc
relax_gc()
counts = [0, 0, 0]
gc.callbacks.append(lambda phase, about: counts.__setitem__(about["generation"], counts[about["generation"]] + 1))
kept = [[[] for _ in range(100)] for _ in range(10_000)]
for _ in range(10_000):
    cycle = []
    cycle.append(cycle)
print(counts, gc.get_count())
assert counts[0] > 50 and counts[2] == 0
"""


def test_long_lived_objects_are_not_collected() -> None:
    """A million long-lived objects cause no full collection, while young objects are collected."""
    done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
