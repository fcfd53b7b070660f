"""Helpers of the log's tests."""

from __future__ import annotations

from collections.abc import Sequence

from evenkeel_raft.core.raft_types import Conf, Entry, HardState, SnapshotMeta
from evenkeel_raft.log.log_disk import Disk
from evenkeel_raft.log.log_frames import HEADER_BYTES
from evenkeel_raft.log.log_rebuild import Recovered
from evenkeel_raft.log.log_records import Append, Compacted, Record
from evenkeel_raft.log.shared_log import LogSettings, SharedLog

VOLUME = "11111111-2222-3333-4444-555555555555"
SMALL = LogSettings(segment_bytes=HEADER_BYTES + 2048, round_bytes=1024)
CONF = Conf(voters=(1, 2, 3))


def open_log(disk: Disk, settings: LogSettings = SMALL) -> tuple[SharedLog, Recovered]:
    return SharedLog.open(disk, settings, volume=VOLUME)


def write(log: SharedLog, *records: Record) -> None:
    for record in records:
        log.heads.admit(record)
    log.write(records)


def entries(first: int, last: int, *, term: int = 1, size: int = 4) -> list[Entry]:
    return [Entry(index, term, 0, bytes([index % 256]) * size) for index in range(first, last + 1)]


def append(
    group: int,
    first: int,
    last: int,
    *,
    replica: int = 1,
    term: int = 1,
    size: int = 4,
    hard_state: HardState | None = None,
) -> Append:
    return Append(group, replica, 0, None, entries(first, last, term=term, size=size), hard_state)


def state(group: int, hard_state: HardState, *, replica: int = 1) -> Append:
    return Append(group, replica, 0, None, [], hard_state)


def installed(group: int, index: int, *, replica: int = 1, term: int = 1) -> Append:
    return Append(group, replica, 0, SnapshotMeta(index, term, CONF), [], None)


def compacted(group: int, index: int, *, replica: int = 1, term: int = 1) -> Compacted:
    return Compacted(group, replica, 0, SnapshotMeta(index, term, CONF))


def indexes(found: Recovered, group: int) -> Sequence[int]:
    return [entry.index for entry in found.groups[group].entries]
