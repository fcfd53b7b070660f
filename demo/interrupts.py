"""Ctrl-C, and SIGTERM just so: it ends the story once, and never between starting something and knowing of it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

__all__ = ["held", "listen"]

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
