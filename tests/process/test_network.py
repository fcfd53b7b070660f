"""Clusters on a network with faults."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_INSIDE = Path(__file__).with_name("broken_network.py")
_NEEDED = ("unshare", "ip", "iptables")


def _able() -> bool:
    return os.geteuid() == 0 and all(shutil.which(command) for command in _NEEDED)


@pytest.mark.skipif(not _able() and "CI" not in os.environ, reason=f"needs root, and {', '.join(_NEEDED)}")
def test_in_a_network_namespace() -> None:
    """The tests of `broken_network.py` pass in their own network namespace."""
    script = 'ip link set lo up && exec "$@"'
    tests = (sys.executable, "-m", "pytest", "-q", "-m", "processes", str(_INSIDE))
    done = subprocess.run(
        ("unshare", "--net", "sh", "-c", script, "sh", *tests), capture_output=True, text=True, check=False, timeout=280
    )
    assert done.returncode == 0, done.stdout + done.stderr
