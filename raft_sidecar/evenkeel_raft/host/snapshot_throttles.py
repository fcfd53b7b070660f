"""The limits for snapshots of the whole store, which can change while it runs.

They come from the metastore. A process that begins without one keeps to the last it was told, or a restart during an
outage of etcd would lift every limit.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from evenkeel.protocol.records import StoreSettings
from evenkeel.runtime.directories import replace_file
from evenkeel_raft.host.host_settings import HostSettings
from evenkeel_raft.host.snapshot_slots import SnapshotSlots
from evenkeel_raft.net.byte_budget import ByteBudget

__all__ = ["SnapshotThrottles"]

log = logging.getLogger(__name__)

_FILE: Final = "settings.json"


class SnapshotThrottles:
    """Applies the throttles in force to the store's budget and slots."""

    def __init__(self, directory: Path, own: HostSettings, *, budget: ByteBudget, slots: SnapshotSlots) -> None:
        self._file = directory / _FILE
        self._own = own
        self._budget = budget
        self._slots = slots
        self._noted = _read(self._file)
        self._set(self._noted)

    def apply(self, settings: StoreSettings | None) -> None:
        """Keep to these from now on, or to the process's own (None), also after a restart."""
        self._set(settings)
        if settings == self._noted:
            return
        try:
            if settings is None:
                self._file.unlink(missing_ok=True)
            else:
                replace_file(self._file, msgspec.json.encode(settings))
            self._noted = settings
        except OSError as error:
            log.warning("throttles hold until the next restart only: %s cannot be written: %s", self._file, error)

    def _set(self, settings: StoreSettings | None) -> None:
        own = self._own
        rate = own.bytes_per_second if settings is None else settings.bytes_per_second
        slots = own.snapshots_at_once if settings is None else settings.snapshots_at_once
        if rate != self._budget.rate:
            self._budget.set_rate(rate)
        self._slots.set_limit(max(1, slots))


def _read(file: Path) -> StoreSettings | None:
    """What was noted last; a file that cannot be read is as good as none, for the metastore tells."""
    with suppress(OSError, ValueError, RecursionError):
        return msgspec.json.decode(file.read_bytes(), type=StoreSettings)
    return None
