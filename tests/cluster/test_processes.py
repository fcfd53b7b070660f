"""Daemons of a test cluster are found again later, and never mistaken for another process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.cluster.cluster_errors import ClusterError
from e2e.cluster.processes import Daemon, run, wait_until

SLEEP = ("sleep", "600")
DEAF = "import signal; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); signal.pause()"


def test_found_by_another_object(tmp_path: Path) -> None:
    """A daemon can be stopped by its folder alone."""
    first = Daemon("one", folder=tmp_path)
    first.start(SLEEP)
    pid = first.pid
    second = Daemon("one", folder=tmp_path)
    assert second.pid == pid
    second.stop()
    assert first.pid is None
    first.stop()


def test_started_once(tmp_path: Path) -> None:
    """A running daemon is not started twice."""
    daemon = Daemon("one", folder=tmp_path)
    daemon.start(SLEEP)
    with pytest.raises(ClusterError, match="runs already"):
        daemon.start(SLEEP)
    daemon.stop()


def test_number_taken_by_another_process(tmp_path: Path) -> None:
    """A process that reuses a dead daemon's pid is not the daemon."""
    (tmp_path / "one.pid").write_text(f"{os.getpid()} 1")
    daemon = Daemon("one", folder=tmp_path)
    assert daemon.pid is None
    daemon.stop()


def test_stubborn(tmp_path: Path) -> None:
    """A daemon that ignores SIGTERM is killed after the grace period."""
    daemon = Daemon("one", folder=tmp_path)
    daemon.start((sys.executable, "-c", DEAF))
    wait_until("it listens no more", lambda: "ready" in daemon.log.read_text(), within=30)
    daemon.stop(grace=0.1)
    assert daemon.pid is None


def test_dies_with_us(tmp_path: Path) -> None:
    """A daemon that is bound to its parent dies with it, even if the parent is killed."""
    code = f"""
import os, pathlib, signal
from e2e.cluster.processes import Daemon
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
    """An error has the command and its stderr; a command that hangs times out."""
    with pytest.raises(ClusterError, match=r"`ls \S+nowhere` failed with 2: .*No such file"):
        run("ls", tmp_path / "nowhere")
    with pytest.raises(ClusterError, match=r"did not end within 0\.1 s"):
        run(*SLEEP, within=0.1)
    with pytest.raises(ClusterError, match="no-such-program is missing"):
        run("no-such-program")


def test_waiting_is_bounded() -> None:
    """A condition that never holds is an error that names it and the last reason."""
    with pytest.raises(ClusterError, match=r"not within 0 s: snow\. It is July"):
        wait_until("snow", lambda: False, within=0, why=lambda: "It is July")
