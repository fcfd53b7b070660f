"""A log is opened only by the store it belongs to."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from random import Random
from zlib import crc32

import msgspec
import pytest

from evenkeel_raft.errors import CorruptLogError, LogInUseError, NewerFormatError, WrongVolumeError
from evenkeel_raft.log.log_disk import FileDisk
from evenkeel_raft.log.log_frames import FORMAT, Layout
from evenkeel_raft.log.log_records import Created
from evenkeel_raft.log.log_volume import VOLUME_FILE, close_to_first_release, open_volume
from evenkeel_raft.log.shared_log import SharedLog
from tests.raft_log.sim import CrashError, SimDisk, at_operation
from tests.raft_log.support import VOLUME, open_log, write

OTHER = "99999999-8888-7777-6666-555555555555"


def rewrite(disk: SimDisk, name: str, data: bytes) -> None:
    del disk.files[name]
    disk.allocate(name, len(data))
    disk.write(name, 0, data)


def test_a_new_log_gets_an_id_and_keeps_it() -> None:
    """A new log gets a new volume id, or the given one."""
    disk = SimDisk()
    first = SharedLog.open(disk)[1].volume
    assert SharedLog.open(disk)[1].volume == first
    assert SharedLog.open(SimDisk())[1].volume != first
    assert SharedLog.open(SimDisk(), volume=VOLUME)[1].volume == VOLUME


def test_the_log_of_another_volume_is_refused() -> None:
    """The error names both volumes."""
    disk = SimDisk()
    open_log(disk)
    with pytest.raises(WrongVolumeError, match=f"{VOLUME}.*{OTHER}"):
        SharedLog.open(disk, volume=OTHER)


def test_a_file_of_another_volume_is_refused() -> None:
    """A file of another volume's log is refused by name."""
    disk, other = SimDisk(), SimDisk()
    open_log(disk)
    log, _ = SharedLog.open(other, volume=OTHER)
    write(log, Created(1, 1, 0))
    disk.files["0000000f.log"] = other.files["00000000.log"]
    with pytest.raises(WrongVolumeError, match=r"0000000f\.log"):
        open_log(disk)


def test_a_newer_format_is_refused() -> None:
    """A newer format is refused in the volume file and in segments."""
    disk = SimDisk()
    log, _ = open_log(disk)
    rewrite(disk, VOLUME_FILE, b'{"format": 3, "name": "something new"}')
    with pytest.raises(NewerFormatError, match=r"volume\.json: the log has format 3, but this version reads up to 2"):
        open_log(disk)

    rewrite(disk, VOLUME_FILE, f'{{"format": {FORMAT}, "volume": "{VOLUME}"}}'.encode())
    write(log, Created(1, 1, 0))
    disk.write("00000000.log", 0, newer_header(Layout(b"x" * 16).header(segment=1, size=1, first_round=1, floor=1)))
    with pytest.raises(NewerFormatError, match=r"00000000\.log: the log has format 2"):
        open_log(disk)


def test_a_log_that_is_closed_to_the_first_release_is_opened(tmp_path: Path) -> None:
    """The volume keeps its id, in a format that the first release refuses."""
    log, before = SharedLog.open(FileDisk(tmp_path))
    close_to_first_release(tmp_path, before.volume)
    log.close()
    assert msgspec.json.decode((tmp_path / VOLUME_FILE).read_bytes()) == {"format": 2, "volume": before.volume}
    log, after = SharedLog.open(FileDisk(tmp_path), volume=before.volume)
    log.close()
    assert after.volume == before.volume


def newer_header(header: bytes) -> bytes:
    fields = header[:8] + (FORMAT + 1).to_bytes(4, "little") + header[12:60]
    return fields + crc32(fields).to_bytes(4, "little")


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"format": 1}', b'{"format": 1, "volume": "x"}', b"\xff\0"])
def test_an_unreadable_identity_is_refused(text: bytes) -> None:
    """An unreadable volume file is refused, not replaced by a new volume."""
    disk = SimDisk()
    open_log(disk)
    rewrite(disk, VOLUME_FILE, text)
    with pytest.raises(CorruptLogError, match=r"volume\.json.*cannot read the volume.s identity"):
        open_log(disk)


def test_segments_without_identity_are_refused() -> None:
    """Segments without a volume file are refused, not treated as a new volume."""
    disk = SimDisk()
    log, _ = open_log(disk)
    write(log, Created(1, 1, 0))
    del disk.files[VOLUME_FILE]
    with pytest.raises(CorruptLogError, match=r"missing, but the directory holds others, such as 00000000\.log"):
        open_log(disk)


def test_creation_survives_every_crash() -> None:
    """After a crash at any time of its creation, the next start creates or finds the log."""
    for stop in range(7):
        for seed in range(8):
            disk = SimDisk()
            disk.before = at_operation(stop, CrashError())
            with suppress(CrashError):
                open_volume(disk, VOLUME)
            disk.crash(Random(seed))
            assert str(open_volume(disk, VOLUME)) == VOLUME


def test_one_process_at_a_time(tmp_path: Path) -> None:
    """A second process is refused while the first holds the directory."""
    disk = FileDisk(tmp_path)
    with pytest.raises(LogInUseError, match="another process has this log open"):
        FileDisk(tmp_path)
    disk.close()
    FileDisk(tmp_path).close()
