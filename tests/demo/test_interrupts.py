"""Ctrl-C at any moment."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator

import pytest

from demo.interrupts import deferred_interrupts, install_handlers, silence_py4j


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    install_handlers()
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_interrupts_once(number: signal.Signals) -> None:
    """The second one does not disturb what cleans up."""
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), number)
    os.kill(os.getpid(), number)


def test_it_waits_until_something_is_known() -> None:
    """What was begun is finished, and then the interrupt comes."""
    done = []

    def begin() -> None:
        with deferred_interrupts():
            with deferred_interrupts():
                os.kill(os.getpid(), signal.SIGINT)
                done.append("inside")
            done.append("outside")

    with pytest.raises(KeyboardInterrupt):
        begin()
    assert done == ["inside", "outside"]


def test_nothing_comes_of_nothing() -> None:
    """Without a signal nothing happens."""
    with deferred_interrupts():
        pass


def test_py4j_says_nothing_of_it(caplog: pytest.LogCaptureFixture) -> None:
    """Neither by its own logger nor by the root's, as it does while a command is under way; others are heard."""
    root, filters = logging.getLogger(), list(logging.getLogger().filters)
    silence_py4j()
    try:
        logging.getLogger("py4j.clientserver").error("Error while sending or receiving.")
        root.error("KeyboardInterrupt while sending command.")
        root.error("something else")
    finally:
        root.filters[:] = filters
        logging.getLogger("py4j").setLevel(logging.NOTSET)
    assert caplog.messages == ["something else"]
