"""Fields that every log line in a block carries.

with log_context(table="orders"):
    ...                        # every line has "table": "orders"
    add_log_fields(plan=3)     # and from here on "plan": 3
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextvars import ContextVar

__all__ = ["add_log_fields", "log_context", "log_fields"]

Value = str | int
_fields: ContextVar[Mapping[str, Value]] = ContextVar("log_fields")


@contextlib.contextmanager
def log_context(**fields: Value) -> Iterator[None]:
    """Add fields to the log lines of a block."""
    token = _fields.set({**log_fields(), **fields})
    try:
        yield
    finally:
        _fields.reset(token)


def add_log_fields(**fields: Value) -> None:
    """Add fields for the rest of the innermost block."""
    _fields.set({**log_fields(), **fields})


def log_fields() -> Mapping[str, Value]:
    """Return the fields of the current block."""
    return _fields.get({})
