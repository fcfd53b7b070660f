"""The set-up, with a stand-in for Python that writes down what it is asked."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.repository.tree import ROOT

STAND_IN = r"""#!/usr/bin/env bash
case "$*" in
    *sys.prefix*) cat "$(dirname "$0")/../prefix" ;;
    -c*) exit 0 ;;
    --version) echo Python 3.13.0 ;;
    "-m venv"*)
        echo "venv" >>calls
        mkdir -p .venv/bin && cp "$0" .venv/bin/python && echo "$PWD/.venv" >.venv/prefix ;;
    *--require-hashes*) echo "install" >>calls; [ ! -e broken ] ;;
esac
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout in a path with a space, on a machine whose only Python is the stand-in."""
    checkout = tmp_path / "a check out"
    shutil.copytree(ROOT / "scripts", checkout / "scripts")
    (checkout / "requirements.lock").write_text("one\n")
    (checkout / "pyproject.toml").write_text("")
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python3.13"
    python.write_text(STAND_IN)
    python.chmod(0o755)
    return checkout


def start(checkout: Path, script: str = "setup.sh") -> subprocess.Popen[bytes]:
    path = f"{checkout.parent / 'bin'}{os.pathsep}{os.environ['PATH']}"
    environment = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "PYTHON")} | {
        "PATH": path
    }
    return subprocess.Popen([checkout / "scripts" / script], env=environment, stderr=subprocess.PIPE)


def set_up(checkout: Path, script: str = "setup.sh") -> int:
    running = start(checkout, script)
    running.communicate()
    return running.returncode


def calls(checkout: Path) -> list[str]:
    return (checkout / "calls").read_text().split()


def test_second_set_up_does_nothing(checkout: Path) -> None:
    """A second set-up with the same lock installs nothing."""
    assert set_up(checkout) == 0
    assert set_up(checkout) == 0

    assert calls(checkout) == ["venv", "install"]


def test_changed_lock_is_installed_in_place(checkout: Path) -> None:
    """A new lock is installed into the environment there is, whatever the files' times say."""
    set_up(checkout)
    (checkout / "requirements.lock").write_text("two\n")
    os.utime(checkout / "requirements.lock", (0, 0))

    assert set_up(checkout) == 0

    assert calls(checkout) == ["venv", "install", "install"]


def test_moved_checkout_gets_a_new_environment(checkout: Path) -> None:
    """An environment holds absolute paths, so a moved one is created again."""
    set_up(checkout)
    moved = checkout.rename(checkout.parent / "elsewhere")

    assert set_up(moved) == 0

    assert calls(moved) == ["venv", "install", "venv", "install"]


def test_failed_install_is_tried_again(checkout: Path) -> None:
    """A set-up that was cut short is not taken for done."""
    (checkout / "broken").touch()
    assert set_up(checkout) != 0
    (checkout / "broken").unlink()

    assert set_up(checkout) == 0

    assert calls(checkout) == ["venv", "install", "install"]


def test_set_ups_at_once_install_once(checkout: Path) -> None:
    """Two makes started together do not work on one environment at the same time."""
    running = [start(checkout) for _ in range(3)]
    for process in running:
        process.communicate()

    assert [process.returncode for process in running] == [0, 0, 0]
    assert calls(checkout) == ["venv", "install"]


def test_spark_is_added_once(checkout: Path) -> None:
    """Spark is installed when it is asked for, and again only when its lock or the environment has changed."""
    java = checkout.parent / "bin" / "java"
    java.write_text("#!/bin/sh\necho 'openjdk version \"17.0.15\"' >&2\n")
    java.chmod(0o755)
    (checkout / "requirements-spark.lock").write_text("one\n")
    set_up(checkout)
    for _ in range(2):
        assert set_up(checkout, "setup-spark.sh") == 0
    assert calls(checkout) == ["venv", "install", "install"]

    (checkout / "requirements-spark.lock").write_text("two\n")
    assert set_up(checkout, "setup-spark.sh") == 0
    assert calls(checkout) == ["venv", "install", "install", "install"]
