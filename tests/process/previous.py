"""The previous release, built from its commit and runnable beside the current one.

`PREVIOUS_RELEASE` names the commit; set EVENKEEL_PREVIOUS to another one, such as HEAD~1, to try that. The wheel is
kept in the cache. It is unpacked into a virtual environment of its own that finds its dependencies where the tests have
theirs.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
PINNED: Final = Path(__file__).with_name("PREVIOUS_RELEASE")


def previous_python(directory: Path) -> str:
    """An interpreter in a new environment of this directory that runs the previous release."""
    commit = previous_commit()
    wheel = _wheel(commit)
    venv.create(directory, with_pip=False, symlinks=True)
    python = directory / "bin" / "python"
    packages = Path(
        _run([str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).decode().strip()
    )
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    found = _ask(python, "import evenkeel; print(evenkeel.__file__)")
    assert Path(found).is_relative_to(packages), f"{python} imports {found}, which is not the previous release"
    return str(python)


def previous_commit() -> str:
    """The commit of the previous release; the test is skipped, or fails in CI, where the history does not have it."""
    named = os.environ.get("EVENKEEL_PREVIOUS") or PINNED.read_text().strip()
    try:
        return _run(["git", "rev-parse", "--verify", "--quiet", f"{named}^{{commit}}"]).decode().strip()
    except (OSError, subprocess.CalledProcessError):
        why = (
            f"the previous release, commit {named}, is not in this checkout: "
            "get the whole history with `git fetch --unshallow`, or clone the repository without --depth"
        )
        (pytest.fail if os.environ.get("CI") else pytest.skip)(why)


def _wheel(commit: str) -> Path:
    """The commit's wheel, from the cache where it was built before."""
    cache = Path(os.environ.get("EVENKEEL_CACHE") or Path.home() / ".cache" / "evenkeel")
    kept = cache / "wheels" / commit
    if not list(kept.glob("*.whl")):
        partial = kept.with_name(f"{commit}.{os.getpid()}")
        with tarfile.open(fileobj=io.BytesIO(_run(["git", "archive", "--format=tar", commit]))) as archive:
            archive.extractall(partial / "source", filter="data")
        pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
        _run([*pip, "--no-build-isolation", "--wheel-dir", str(partial / "wheels"), str(partial / "source")])
        try:
            (partial / "wheels").rename(kept)
        except OSError:
            assert list(kept.glob("*.whl")), "another process built it at the same time"
    return next(kept.glob("*.whl"))


def _ask(python: Path, code: str) -> str:
    return _run([str(python), "-P", "-c", code]).decode().strip()


def _run(command: list[str]) -> bytes:
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout
