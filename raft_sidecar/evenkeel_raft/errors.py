"""The exceptions of the log, under `evenkeel.errors.EvenkeelError`.

    EvenkeelError
    └── LogError
        ├── LogInUseError          another process has the log open
        ├── NewerFormatError       a newer version wrote the log
        ├── WrongVolumeError       the log belongs to another volume
        ├── CorruptLogError        durable records are damaged; names file and offset
        ├── RecordRefusedError     a record contradicts the log's contents; nothing was written
        ├── DiskFullError          the disk is full; nothing was written, and a retry may succeed
        └── LogFailedError         the disk or the log failed; the process must restart

The raft core does not depend on this module; its errors are in `core.errors`.
"""

from __future__ import annotations

from evenkeel.errors import EvenkeelError

__all__ = [
    "CorruptLogError",
    "DiskFullError",
    "LogError",
    "LogFailedError",
    "LogInUseError",
    "NewerFormatError",
    "RecordRefusedError",
    "WrongVolumeError",
]


class LogError(EvenkeelError):
    """Base class of the shared log's errors."""


class LogInUseError(LogError):
    """Another process has the log open; two writers would destroy each other's records."""


class NewerFormatError(LogError):
    """A newer version wrote the log in a format that this version cannot read."""


class WrongVolumeError(LogError):
    """The log belongs to another volume: its disk was swapped, so its replicas are not this store's."""


class CorruptLogError(LogError):
    """Durable records are damaged or missing; truncating the log there would lose acknowledged entries."""

    def __init__(self, message: str, *, file: str, offset: int) -> None:
        super().__init__(f"{file}, offset {offset}: {message}")
        self.file = file
        self.offset = offset


class RecordRefusedError(LogError):
    """A record contradicts the log, such as a gap or a lower term. The caller has a bug; nothing was written."""


class DiskFullError(LogError):
    """The disk has no space for entries. No part of the round was written."""


class LogFailedError(LogError):
    """The log failed. After a failed fsync it is unknown what is durable, so the process must restart and recover."""
