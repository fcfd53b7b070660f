"""Structured logs: one line an event, with who logs it and what it is about; libraries' logs go the same way."""

from __future__ import annotations

import logging
import sys
from typing import Final

import structlog
from structlog.typing import Processor

from evenkeel.runtime.log_context import subject

__all__ = ["set_up_logs"]

_SHARED: Final[list[Processor]] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.stdlib.ExtraAdder(),
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.format_exc_info,
]


def set_up_logs(*, level: str, form: str, **who: str) -> None:
    """Send everything that is logged to standard error; `who` is part of every line."""
    last: Processor = structlog.processors.JSONRenderer()
    if form == "console":
        last = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*_SHARED, _named(who)],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, last],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


def _named(who: dict[str, str]) -> Processor:
    def add(_: object, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        # What a line says of itself goes before what it is said in the middle of.
        return {**subject(), **event, **who}

    return add
