"""Daemons of a test cluster: found again by whoever comes later, and never mistaken for another process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.cluster.errors import ClusterError
from e2e.cluster.process import Daemon, run, wait_until

SLEEP = ("sleep", "600")
DEAF = "import signal; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); signal.pause()"


def test_found_by_another_object(tmp_path: Path) -> None:
    """Somebody who only knows the folder can end a daemon."""
    first = Daemon("one", folder=tmp_path)
    first.start(SLEEP)
    pid = first.pid
    second = Daemon("one", folder=tmp_path)
    assert second.pid == pid
    second.stop()
    assert first.pid is None
    first.stop()


def test_started_once(tmp_path: Path) -> None:
    """A daemon that runs is not started beside itself."""
    daemon = Daemon("one", folder=tmp_path)
    daemon.start(SLEEP)
    with pytest.raises(ClusterError, match="runs already"):
        daemon.start(SLEEP)
    daemon.stop()


def test_number_taken_by_another_process(tmp_path: Path) -> None:
    """A process that got the number of one long dead is none of ours."""
    (tmp_path / "one.pid").write_text(f"{os.getpid()} 1")
    daemon = Daemon("one", folder=tmp_path)
    assert daemon.pid is None
    daemon.stop()


def test_stubborn(tmp_path: Path) -> None:
    """Who does not listen to SIGTERM is killed after the time of grace."""
    daemon = Daemon("one", folder=tmp_path)
    daemon.start((sys.executable, "-c", DEAF))
    wait_until("it listens no more", lambda: "ready" in daemon.log.read_text(), within=30)
    daemon.stop(grace=0.1)
    assert daemon.pid is None


def test_dies_with_us(tmp_path: Path) -> None:
    """A daemon that was started to die with its parent does so even when that one is killed."""
    code = f"""
import os, pathlib, signal
from e2e.cluster.process import Daemon
Daemon("one", folder=pathlib.Path({str(tmp_path)!r})).start({SLEEP!r}, dies_with_us=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=False)
    daemon = Daemon("one", folder=tmp_path)
    assert (tmp_path / "one.pid").exists()
    try:
        wait_until("it is gone", lambda: daemon.pid is None, within=30)
    finally:
        daemon.stop()


def test_errors_say_what_failed(tmp_path: Path) -> None:
    """An error has the command and what it complained of; one that hangs is given up."""
    with pytest.raises(ClusterError, match=r"`ls \S+nowhere` failed with 2: .*No such file"):
        run("ls", tmp_path / "nowhere")
    with pytest.raises(ClusterError, match=r"did not end within 0\.1 s"):
        run(*SLEEP, within=0.1)
    with pytest.raises(ClusterError, match="no-such-program is missing"):
        run("no-such-program")


def test_waiting_is_bounded() -> None:
    """What never comes is an error that says what it was, and why."""
    with pytest.raises(ClusterError, match=r"not within 0 s: snow\. It is July"):
        wait_until("snow", lambda: False, within=0, why=lambda: "It is July")
