"""The demo with few rows: it succeeds without a terminal, and leaves nothing behind, also when interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError

from demo.spark import Rows
from tests.repository.tree import ROOT


@contextmanager
def demo(folder: Path, *arguments: str, prefix: tuple[str, ...] = ()) -> Iterator[subprocess.Popen[str]]:
    """Run the demo with its temporary files in a directory whose name has spaces."""
    temporary = folder / "temporary files"
    temporary.mkdir()
    with subprocess.Popen(
        [*prefix, sys.executable, "-m", "demo", *arguments],
        cwd=ROOT,
        env={**os.environ, "FAST": "1", "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as running:
        try:
            yield running
        finally:
            if running.poll() is None:
                running.kill()


def left_behind(folder: Path) -> list[str]:
    """Return remaining files, and processes whose command line has the directory."""
    named = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and os.fsencode(folder) in (entry / "cmdline").read_bytes():
                named.append((entry / "cmdline").read_bytes().decode(errors="replace"))
        except OSError:
            continue
    return [*named, *map(str, (folder / "temporary files").glob("evenkeel-*"))]


def unresolvable_host() -> tuple[str, ...]:
    """Return a command prefix that gives the host a name that does not resolve; empty if that is not permitted."""
    unshare = ("unshare", "--uts", "sh", "-c", 'hostname no-such-host.invalid && exec "$0" "$@"')
    allowed = subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode == 0
    return unshare if allowed else ()


@pytest.mark.parametrize("error", [AttributeError, Py4JNetworkError, ConnectionRefusedError])
def test_progress_of_a_stopped_spark(error: type[Exception]) -> None:
    """The progress display may run after Ctrl-C has stopped Spark."""

    def stopped() -> None:
        raise error("stopped")

    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(statusTracker=stopped))
    assert Rows(spark, table="orders", endpoints=[], count=1).progress() == (0, 0)


@pytest.mark.timeout(600)
def test_every_acknowledged_row_is_found(tmp_path: Path) -> None:
    """The demo and its report pass all checks, on a host whose name does not resolve."""
    report = tmp_path / "the report.html"
    arguments = ("--rows", "5000", "--quiet-seconds", "1", "--report", str(report))
    with demo(tmp_path, *arguments, prefix=unresolvable_host()) as running:
        output, _ = running.communicate()
    assert running.returncode == 0, output
    assert "\x1b" not in output
    for step in ("Scale the table", "Drain main-5", "Kill main-2", "change the target while replicas are copied"):
        assert f"==> {step}" in output or step in output
    assert "FAIL" not in output
    assert "ok    Spark's row count equals the number of acknowledged rows" in output
    assert f"Report: {report}" in output
    assert "All checks passed." in report.read_text()
    assert left_behind(tmp_path) == []


def catches(pid: int, number: signal.Signals) -> bool:
    """Whether a process has a handler for a signal; Python itself has none for SIGTERM."""
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigCgt:")]
    return bool(int(line.split()[1], 16) >> (number - 1) & 1)


def test_interrupted_at_its_very_start(tmp_path: Path) -> None:
    """An interrupt during the imports prints no traceback."""
    with demo(tmp_path) as running:
        while not catches(running.pid, signal.SIGTERM):
            assert running.poll() is None
        os.killpg(running.pid, signal.SIGINT)
        output, _ = running.communicate()
    assert (running.returncode, output) == (130, "interrupted; stores, etcd and their data have been removed\n")
    assert left_behind(tmp_path) == []


@pytest.mark.timeout(600)
@pytest.mark.parametrize("when", ["Start etcd", "Load", "Read and write"])
def test_interrupted(tmp_path: Path, when: str) -> None:
    """Ctrl-C ends the demo without a traceback in any step."""
    with demo(tmp_path, "--rows", "1000", "--quiet-seconds", "60") as running:
        assert running.stdout is not None
        seen = []
        for line in running.stdout:
            seen.append(line)
            if line.startswith(f"==> {when}"):
                os.killpg(running.pid, signal.SIGINT)
                break
        output, _ = running.communicate()
    assert running.returncode == 130, "".join([*seen, output])
    assert "Traceback" not in output
    assert "have been removed" in output
    assert left_behind(tmp_path) == []
