"""The demo runs to its end and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def _start(tmp_path: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "FAST": "1", "TMPDIR": str(tmp_path), "COLUMNS": "120"}
    return subprocess.Popen(
        [sys.executable, "-m", "demo"],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_demo_verifies_what_it_did(tmp_path: Path) -> None:
    """In a pipe it prints plain lines, ends with what it verified in etcd, and removes etcd's data."""
    process = _start(tmp_path)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    assert "s7 joined: it held 0" in output
    assert "every partition is stable at plan" in output
    assert "modelled" in output
    assert "\x1b" not in output
    assert list(tmp_path.iterdir()) == []


def test_demo_cleans_up_when_interrupted(tmp_path: Path) -> None:
    """Ctrl-C ends it without a traceback and removes etcd's data."""
    process = _start(tmp_path)
    assert process.stdout is not None
    for line in process.stdout:
        if "Store s7 joins" in line:
            process.send_signal(signal.SIGINT)
            break
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert "Traceback" not in output
    assert list(tmp_path.iterdir()) == []
