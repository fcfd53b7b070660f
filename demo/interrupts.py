"""Ctrl-C, and SIGTERM just so: it ends the story once, and never between starting something and knowing of it."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

__all__ = ["held", "hush_py4j", "listen"]

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class _State:
    """What the handler knows: it cannot be asked for anything else."""

    holding = 0
    asked = False


def listen() -> None:
    """Let signals raise KeyboardInterrupt, from now on; again, after others have had them."""
    for number in _SIGNALS:
        signal.signal(number, _interrupt)


@contextmanager
def held() -> Iterator[None]:
    """Let a signal wait until this is over."""
    _State.holding += 1
    try:
        yield
    finally:
        _State.holding -= 1
        if _State.asked and not _State.holding:
            _State.asked = False
            _end()


def hush_py4j() -> None:
    """Show nothing of what Ctrl-C cuts off between Spark and Java: Py4J would show pages of it, by two loggers."""
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_is_no_interrupt)


def _is_no_interrupt(record: logging.LogRecord) -> bool:
    return "KeyboardInterrupt" not in record.getMessage()


def _interrupt(number: int, frame: object) -> None:
    if _State.holding:
        _State.asked = True
    else:
        _end()


def _end() -> None:
    """End the story; whoever presses Ctrl-C again does not keep us from cleaning up."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt
