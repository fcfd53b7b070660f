"""What holds for all tests, wherever they are started from."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """A shell has what it puts in the background ignore Ctrl-C, and so would all that tests start and interrupt."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
