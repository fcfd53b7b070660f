"""A failed log ends the process with a log record that says why."""

from __future__ import annotations

import errno
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from evenkeel_raft.errors import LogFailedError
from evenkeel_raft.host.host import Host
from evenkeel_raft.log.entry_extents import Extents
from evenkeel_raft.log.log_disk import FileDisk
from evenkeel_raft.log.log_frames import HEADER_BYTES
from evenkeel_raft.log.log_records import Created
from evenkeel_raft.log.shared_log import LogSettings
from tests.raft_host.support import LOOPBACK
from tests.raft_log.support import append, compacted

SMALL_LOG = LogSettings(segment_bytes=HEADER_BYTES + 2048, round_bytes=1024)


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[Host]:
    host = await Host.open(
        tmp_path, store="a", cluster="c", socket=tmp_path / "raft.sock", listen=(LOOPBACK, 0), log_settings=SMALL_LOG
    )
    yield host
    await host.close()


async def write_until_collected(host: Host) -> None:
    """Fill segments in which only the first entries stay alive."""
    write = host._context.writer.write
    await write(Created(1, 1, 0), Created(2, 1, 0), append(2, 1, 4))
    for index in range(1, 100):
        await write(append(1, index, index, size=500))
        await write(compacted(1, index))


async def test_a_bug_is_logged_with_its_traceback(
    host: Host, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A bug in the collector is logged with its traceback."""

    def impossible(_self: Extents, _first: int, _last: int, *, round_: int) -> list[tuple[int, int]]:
        raise KeyError(round_)

    monkeypatch.setattr(Extents, "inside", impossible)
    with pytest.raises(LogFailedError, match="restart the process to recover from disk: KeyError"):
        await write_until_collected(host)
    assert isinstance(host.failed.exception(), LogFailedError)
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "the log failed; ending this process" in record.getMessage()
    assert record.exc_info


async def test_a_failed_disk_is_one_line(
    host: Host, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A disk error is logged without a traceback."""

    def fail(_self: FileDisk, _name: str) -> None:
        raise OSError(errno.EIO, "the disk is dying")

    monkeypatch.setattr(FileDisk, "sync", fail)
    with pytest.raises(LogFailedError, match="the disk failed"):
        await write_until_collected(host)
    assert isinstance(host.failed.exception(), LogFailedError)
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "the disk is dying" in record.getMessage()
    assert not record.exc_info
