"""What lines of a log are about, told once, wherever in the call they are written.

with about(table="orders"):
    ...                        # every line from here has "table": "orders"
    note(plan=3)               # and from here "plan": 3 too
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextvars import ContextVar

__all__ = ["about", "note", "subject"]

Value = str | int
_subject: ContextVar[Mapping[str, Value]] = ContextVar("subject")


@contextlib.contextmanager
def about(**fields: Value) -> Iterator[None]:
    """Say what is dealt with in this block."""
    token = _subject.set({**subject(), **fields})
    try:
        yield
    finally:
        _subject.reset(token)


def note(**fields: Value) -> None:
    """Say more of it, for the rest of the block."""
    _subject.set({**subject(), **fields})


def subject() -> Mapping[str, Value]:
    """What is dealt with now."""
    return _subject.get({})
