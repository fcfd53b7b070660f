"""Directories and small files that are there after a crash, if anything in them is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from evenkeel.runtime.directories import DataDirectory, make_directory, replace_file
from evenkeel_raft.log.log_disk import FileDisk


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """What is synced, in this order."""
    found: list[Path] = []
    fsync = os.fsync

    def noting(descriptor: int) -> None:
        found.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    monkeypatch.setattr("evenkeel.runtime.directories.os.fsync", noting)
    return found


def test_every_name_that_is_made_is_durable(tmp_path: Path, synced: list[Path]) -> None:
    """From the top down, and only where something was made."""
    make_directory(tmp_path / "a" / "b" / "c")
    assert synced == [tmp_path, tmp_path / "a", tmp_path / "a" / "b"]
    make_directory(tmp_path / "a" / "b" / "c")
    make_directory(tmp_path / "a" / "b" / "d")
    assert synced[3:] == [tmp_path / "a" / "b"]


def test_a_log_and_a_state_machine_s_directory_are(tmp_path: Path, synced: list[Path]) -> None:
    """What is promised inside would be lost with the directory's name."""
    FileDisk(tmp_path / "raft" / "log").close()
    assert synced[:2] == [tmp_path, tmp_path / "raft"]
    DataDirectory(tmp_path / "state").release()
    assert synced[2:] == [tmp_path]


def test_a_file_is_replaced_when_its_successor_is_durable(tmp_path: Path, synced: list[Path]) -> None:
    """First the new contents, then the name; nothing else is left behind."""
    replace_file(tmp_path / "peers", b"1")
    replace_file(tmp_path / "peers", b"2")
    assert synced == [tmp_path / "peers.new", tmp_path] * 2
    assert (tmp_path / "peers").read_bytes() == b"2"
    assert [path.name for path in tmp_path.iterdir()] == ["peers"]
