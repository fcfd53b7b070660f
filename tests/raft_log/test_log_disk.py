"""The log on a real file system, in processes that are killed or run out of space."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from evenkeel_raft.core.raft_types import HardState
from evenkeel_raft.errors import LogFailedError
from evenkeel_raft.log.log_disk import FileDisk
from evenkeel_raft.log.log_records import Created
from evenkeel_raft.log.shared_log import LogSettings, SharedLog
from tests.raft_log.child import SETTINGS, states
from tests.raft_log.model import from_recovered
from tests.raft_log.support import append, open_log, write

ROOT = Path(__file__).parents[2]


def start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.raft_log.child", *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def test_killed_in_mid_write(tmp_path: Path) -> None:
    """After each of five SIGKILLs, every reported round is there and at most one more."""
    rng, durable = Random(1), 0
    for _ in range(5):
        with start("kill", str(tmp_path), "11", str(durable)) as child:
            assert child.stdout is not None
            wanted = durable + rng.randint(1, 60)
            reported = durable
            while reported < wanted:
                reported = int(child.stdout.readline())
            child.kill()
            reported = max([reported, *map(int, child.stdout)])
        disk = FileDisk(tmp_path)
        _, found = open_log(disk, SETTINGS)
        disk.close()
        history = states(11, reported + 1)
        assert from_recovered(found) in history[reported:]
        durable = reported + (from_recovered(found) != history[reported])


def test_without_space(tmp_path: Path) -> None:
    """Entries are refused, small records fit, compaction makes room, and nothing acknowledged is lost."""
    with start("full", str(tmp_path)) as child:
        assert child.stdout is not None
        lines = child.stdout.read().splitlines()
    assert child.returncode == 0
    assert lines[0] == "full at once 0"
    last = int(lines[1].removeprefix("durable "))
    assert last > 40
    _, found = open_log(FileDisk(tmp_path), SETTINGS)
    group = found.groups[1]
    assert (group.meta.index, group.hard_state) == (last - 1, HardState(7, 3, 0))
    assert [entry.index for entry in group.entries] == list(range(last, last + 11))


def test_files_are_allocated_and_reused(tmp_path: Path) -> None:
    """The directory always holds a few files of one size."""
    log, _ = open_log(FileDisk(tmp_path), SETTINGS)
    while log.maintain():
        pass
    write(log, Created(1, 1, 0))
    for index in range(1, 60):
        write(log, append(1, index, 59, size=50))
    log.close()
    sizes = [path.stat().st_size for path in tmp_path.glob("*.log")]
    assert set(sizes) == {SETTINGS.segment_bytes}
    assert len(sizes) <= 8
    blocks = [path.stat().st_blocks * 512 for path in tmp_path.glob("*.log")]
    assert min(blocks) >= SETTINGS.segment_bytes


def test_the_default_size(tmp_path: Path) -> None:
    """A new log allocates its first segment, and its reserve in the background."""
    log, _ = SharedLog.open(FileDisk(tmp_path))
    write(log, Created(1, 1, 0))
    assert sum(path.stat().st_size for path in tmp_path.glob("*.log")) <= 2 * LogSettings().segment_bytes
    log.close()


def test_a_directory_that_cannot_be_read(tmp_path: Path) -> None:
    """The error names the file and has no traceback."""
    log, _ = open_log(FileDisk(tmp_path), SETTINGS)
    write(log, Created(1, 1, 0))
    log.close()
    name = next(tmp_path.glob("*.log"))
    name.unlink()
    name.mkdir()
    with pytest.raises(LogFailedError, match=name.name):
        open_log(FileDisk(tmp_path), SETTINGS)


def test_a_deleted_directory_is_a_failed_disk(tmp_path: Path) -> None:
    """The log fails when it needs the next file."""
    folder = tmp_path / "log"
    log, _ = open_log(FileDisk(folder), SETTINGS)
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    with pytest.raises(LogFailedError, match="No such file or directory"):
        write(log, Created(1, 1, 0))
    assert os.listdir(tmp_path) == []
