"""The event loop of sidecars and stores: uvloop if it is installed, else asyncio's.

Freed memory stays with the process. Frames and entries are allocated and freed by the megabyte; with its initial limits
glibc would return their pages to the kernel and fetch zeroed ones for each. The limits set here are those that glibc
chooses by itself after a process has freed a block of 32 MiB.
"""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import Callable, Coroutine
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final, TypeVar

__all__ = ["loop_factory", "retain_freed_memory", "run"]

# Parameters of mallopt: the size from which a block is mapped separately, and the free memory kept at the heap's end.
_MMAP_THRESHOLD: Final = (-3, 32 << 20)
_TRIM_THRESHOLD: Final = (-1, 64 << 20)

Result = TypeVar("Result")


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """Return a function that creates event loops."""
    if find_spec("uvloop") is None:
        return asyncio.new_event_loop
    factory: Callable[[], asyncio.AbstractEventLoop] = import_module("uvloop").new_event_loop
    return factory


def retain_freed_memory() -> None:
    """Make malloc keep freed memory; does nothing if the C library is not glibc."""
    with suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        for limit in (_MMAP_THRESHOLD, _TRIM_THRESHOLD):
            mallopt(*limit)


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine on a new event loop, like `asyncio.run`."""
    retain_freed_memory()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(main)
