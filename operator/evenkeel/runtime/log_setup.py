"""Structured logs on standard error, also for libraries that use `logging`."""

from __future__ import annotations

import logging
import sys
from typing import Final

import structlog
from structlog.typing import Processor

from evenkeel.runtime.log_context import log_fields

__all__ = ["set_up_logs"]

_SHARED: Final[list[Processor]] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.stdlib.ExtraAdder(),
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.format_exc_info,
]


def set_up_logs(*, level: str, form: str, **process: str) -> None:
    """Send all logs to standard error; the fields of `process` are part of every line."""
    last: Processor = structlog.processors.JSONRenderer()
    if form == "console":
        last = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*_SHARED, _add_fields(process)],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, last],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


def _add_fields(process: dict[str, str]) -> Processor:
    def add(_: object, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        # The fields of a line override those of its context.
        return {**log_fields(), **event, **process}

    return add
