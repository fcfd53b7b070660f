"""How results can be printed; apart from `printing`, so that reading a command line needs nothing of it."""

from __future__ import annotations

import enum

__all__ = ["Output"]


class Output(enum.StrEnum):
    """How a result is printed."""

    TABLE = "table"
    JSON = "json"
