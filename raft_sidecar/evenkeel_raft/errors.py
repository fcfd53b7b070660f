"""Every error the sidecar raises on purpose, under `evenkeel.errors.EvenkeelError`.

    EvenkeelError
    └── LogError
        ├── LogInUseError          another process has the log open
        ├── NewerFormatError       a newer version wrote the log
        ├── WrongVolumeError       the log belongs to another volume
        ├── CorruptLogError        what was durable is damaged; names file and offset
        ├── RecordRefusedError     a record does not follow from what the log holds; nothing was written
        ├── DiskFullError          there is no room; nothing was written, and the log goes on when there is
        └── LogFailedError         the disk failed, or the log met a bug of its own; final for this process

The raft core stands alone and has errors of its own.
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
    """The shared log could not do what was asked."""


class LogInUseError(LogError):
    """Two writers would destroy each other's records."""


class NewerFormatError(LogError):
    """Reading a format one does not know would be guessing."""


class WrongVolumeError(LogError):
    """A disk was swapped: its replicas are not the ones this store holds."""


class CorruptLogError(LogError):
    """Durable records are damaged or missing; cutting them off would silently lose acknowledged entries."""

    def __init__(self, message: str, *, file: str, offset: int) -> None:
        super().__init__(f"{file}, offset {offset}: {message}")
        self.file = file
        self.offset = offset


class RecordRefusedError(LogError):
    """A gap, a term that falls, a replica id that was used up: a bug of the caller, caught before it is durable."""


class DiskFullError(LogError):
    """No space for entries. Nothing of the round was written."""


class LogFailedError(LogError):
    """After a failed fsync nobody knows what is durable: the process must end, and recover from the disk."""
