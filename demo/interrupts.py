"""Ctrl-C and SIGTERM: they interrupt the demo once, and never between starting a process and recording it."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

__all__ = ["deferred_interrupts", "install_handlers", "silence_py4j"]

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class _State:
    """State that the signal handlers need; they receive no other arguments."""

    holding = 0
    asked = False


def install_handlers() -> None:
    """Make signals raise KeyboardInterrupt; call it again after a library has replaced the handlers."""
    for number in _SIGNALS:
        signal.signal(number, _interrupt)


@contextmanager
def deferred_interrupts() -> Iterator[None]:
    """Defer signals until the block ends."""
    _State.holding += 1
    try:
        yield
    finally:
        _State.holding -= 1
        if _State.asked and not _State.holding:
            _State.asked = False
            _end()


def silence_py4j() -> None:
    """Suppress the pages of errors that Py4J logs with two loggers when Ctrl-C interrupts a call to Java."""
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
    """Interrupt the demo; further signals are ignored so that they do not disturb the clean-up."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt
