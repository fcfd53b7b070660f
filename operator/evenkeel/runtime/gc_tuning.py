"""Garbage collector settings for processes with millions of long-lived objects.

A full collection visits every object and starts when the number of objects has grown by a quarter. With ten thousand
groups it would take as long as an election timeout, and would free almost nothing. Full collections are therefore rare,
while young objects are collected as usual.
"""

from __future__ import annotations

import gc

__all__ = ["relax_gc"]


def relax_gc() -> None:
    """Collect young objects in larger batches, and all objects very rarely."""
    gc.freeze()
    gc.set_threshold(10_000, 20, 1_000)
