"""Directories and small files are durable before their contents are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from evenkeel.runtime.directories import DataDirectory, make_directory, replace_file
from evenkeel_raft.log.log_disk import FileDisk


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The synced paths, in order."""
    found: list[Path] = []
    fsync = os.fsync

    def recording(descriptor: int) -> None:
        found.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    monkeypatch.setattr("evenkeel.runtime.directories.os.fsync", recording)
    return found


def test_new_directories_are_durable(tmp_path: Path, synced: list[Path]) -> None:
    """Parents of new directories are synced from the top down, and no others."""
    make_directory(tmp_path / "a" / "b" / "c")
    assert synced == [tmp_path, tmp_path / "a", tmp_path / "a" / "b"]
    make_directory(tmp_path / "a" / "b" / "c")
    make_directory(tmp_path / "a" / "b" / "d")
    assert synced[3:] == [tmp_path / "a" / "b"]


def test_directories_of_logs_and_state_machines_are_durable(tmp_path: Path, synced: list[Path]) -> None:
    """Durable data inside would be lost with the directory's name."""
    FileDisk(tmp_path / "raft" / "log").close()
    assert synced[:2] == [tmp_path, tmp_path / "raft"]
    DataDirectory(tmp_path / "state").release()
    assert synced[2:] == [tmp_path]


def test_a_file_is_replaced_durably(tmp_path: Path, synced: list[Path]) -> None:
    """The new contents are synced first, then the name, and no temporary file remains."""
    replace_file(tmp_path / "peers", b"1")
    replace_file(tmp_path / "peers", b"2")
    assert synced == [tmp_path / "peers.new", tmp_path] * 2
    assert (tmp_path / "peers").read_bytes() == b"2"
    assert [path.name for path in tmp_path.iterdir()] == ["peers"]
