"""`python -m e2e.cluster` without a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.cluster import netns
from e2e.cluster.__main__ import main


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENKEEL_CACHE", str(tmp_path))
    monkeypatch.delenv("EVENKEEL_CLUSTER", raising=False)
    monkeypatch.setattr("signal.signal", lambda *_: None)


def test_status(capsys: pytest.CaptureFixture[str]) -> None:
    """An empty list of clusters is no error."""
    assert main(["status"]) == 0
    assert capsys.readouterr().out == "no clusters\n"


def test_down_twice(capsys: pytest.CaptureFixture[str]) -> None:
    """Removing a cluster that does not exist is no error."""
    assert main(["down", "--name", "nobody"]) == 0
    assert "no cluster nobody" in capsys.readouterr().err


def test_without_root(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Without root nothing is installed, built or started: tests are skipped, and a requested cluster is an error."""
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr("subprocess.run", lambda *_, **__: pytest.fail("nothing must be started"))
    assert main(["prepare"]) == 0
    assert main(["up"]) == 1
    assert capsys.readouterr().err.count("need Linux and root") == 2


def test_loading_into_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """An image for an unknown cluster is refused, with the known clusters."""
    assert main(["load", "image:tag"]) == 1
    assert "there is no cluster dev; there are: none" in capsys.readouterr().err


def test_unknown_provider(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown provider is refused by name."""
    monkeypatch.setenv("EVENKEEL_CLUSTER", "minikube")
    assert main(["prepare"]) == 1
    assert "EVENKEEL_CLUSTER=minikube is unknown; there are: netns, kind, current" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["", "Dev", "-dev", "a/b", "x" * 40])
def test_names(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A name that is invalid for namespaces and folders is refused."""
    monkeypatch.setattr(netns, "check", lambda: None)
    monkeypatch.setattr(netns, "prepare", lambda: None)
    assert main(["up", f"--name={name}"]) == 1
    assert "not a name for a cluster" in capsys.readouterr().err
