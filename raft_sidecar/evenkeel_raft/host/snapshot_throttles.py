"""Throttles for the snapshots of the whole store, which can change while it runs.

The throttles come from the metastore and are cached on the volume. Without the cache, a restart while etcd is down
would remove all limits.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from evenkeel.protocol.records import StoreSettings
from evenkeel_raft.host.host_settings import HostSettings
from evenkeel_raft.host.snapshot_slots import SnapshotSlots
from evenkeel_raft.host.volume_files import CachedFile
from evenkeel_raft.net.byte_budget import ByteBudget

__all__ = ["SnapshotThrottles"]

_FILE: Final = "settings.json"


class SnapshotThrottles:
    """Applies the current throttles to the store's byte budget and snapshot slots."""

    def __init__(self, directory: Path, defaults: HostSettings, *, budget: ByteBudget, slots: SnapshotSlots) -> None:
        self._file = CachedFile(directory / _FILE, StoreSettings)
        self._defaults = defaults
        self._budget = budget
        self._slots = slots
        self._set(self._file.value)

    def apply(self, settings: StoreSettings | None) -> None:
        """Use these throttles, or the defaults of the process (None), also after a restart."""
        self._set(settings)
        self._file.write(settings)

    def _set(self, settings: StoreSettings | None) -> None:
        defaults = self._defaults
        rate = defaults.bytes_per_second if settings is None else settings.bytes_per_second
        slots = defaults.snapshots_at_once if settings is None else settings.snapshots_at_once
        if rate != self._budget.rate:
            self._budget.set_rate(rate)
        self._slots.set_limit(max(1, slots))
