"""What sidecars and state machines run on.

The event loop is uvloop's where it is installed, asyncio's own elsewhere. Freed memory stays with the process: frames
and entries come and go by the megabyte, and the C library would give their pages back and fetch them again, zeroed, for
each. It is told the limits that it comes to by itself in a process that has freed a block of 32 MiB.
"""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import Callable, Coroutine
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final, TypeVar

__all__ = ["keep_what_is_freed", "loop_factory", "run"]

# Of glibc's malloc.h: from which size on a block has pages of its own, and how much may be free at the heap's end.
_MMAP_THRESHOLD: Final = (-3, 32 << 20)
_TRIM_THRESHOLD: Final = (-1, 64 << 20)

Result = TypeVar("Result")


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """Return what makes the loop."""
    if find_spec("uvloop") is None:
        return asyncio.new_event_loop
    factory: Callable[[], asyncio.AbstractEventLoop] = import_module("uvloop").new_event_loop
    return factory


def keep_what_is_freed() -> None:
    """Have freed memory used again; nothing happens where the C library is not glibc."""
    with suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        for limit in (_MMAP_THRESHOLD, _TRIM_THRESHOLD):
            mallopt(*limit)


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine on a loop of its own, as `asyncio.run` does."""
    keep_what_is_freed()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(main)
