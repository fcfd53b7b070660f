"""Ctrl-C and SIGTERM."""

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
    """A second signal does not interrupt the clean-up."""
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), number)
    os.kill(os.getpid(), number)


def test_deferred_interrupts() -> None:
    """A deferred signal interrupts at the end of the block."""
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


def test_a_block_without_a_signal_ends_normally() -> None:
    """A block that receives no signal raises nothing, and the next signal interrupts at once."""
    before = signal.getsignal(signal.SIGINT)
    with deferred_interrupts():
        pass
    assert signal.getsignal(signal.SIGINT) is before
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)


def test_py4j_is_silent(caplog: pytest.LogCaptureFixture) -> None:
    """Interrupts are not logged by Py4J's logger or the root logger; other errors are."""
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
