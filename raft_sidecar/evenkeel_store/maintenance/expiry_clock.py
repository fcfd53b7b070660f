"""How long this process has observed what waits to expire, measured by its monotonic clock alone.

Before a partition keeps log time (`log_time`), its stamps are readings of wall clocks and prove nothing: a clock may
have been wrong, and leaders of the first release stamp and expire by theirs. A leader of this release therefore expires
only what it has observed unchanged for the whole period. An age counts from the first observation, so it is never too
high. It starts again after a change of leader and after a restart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, Generic, NamedTuple, TypeVar

from evenkeel_store.engine.group_metadata import MAX_PIN_MILLISECONDS, MAX_STAMPS, GroupMetadata, PinnedAt
from evenkeel_store.engine.log_entries import Expire
from evenkeel_store.engine.write_tokens import LastUse

__all__ = ["ExpiryClock"]

_INDEX_SECONDS: Final = 10.0
_Kind = TypeVar("_Kind")


class _Observed(NamedTuple, Generic[_Kind]):
    value: _Kind
    since: float


class ExpiryClock:
    """How long one group's writers have been silent, its pins unchanged and its indexes applied."""

    def __init__(self) -> None:
        self._now = 0.0
        self._writers: dict[str, _Observed[LastUse]] = {}
        self._pins: dict[str, _Observed[PinnedAt]] = {}
        self._indexes: list[tuple[float, int]] = []
        self._index_seconds = _INDEX_SECONDS
        self._stamps: tuple[tuple[int, int], ...] = ()

    def observe(self, metadata: GroupMetadata, writers: Mapping[str, LastUse], *, now: float) -> None:
        """Record the group's present state; `now` is a reading of the monotonic clock."""
        self._now = now
        writers_before, pins_before = self._writers, self._pins
        self._writers, self._pins = {}, {}
        for name, use in writers.items():
            writer = writers_before.get(name)
            self._writers[name] = writer if writer is not None and writer.value == use else _Observed(use, now)
        for name, pinned in metadata.pins.items():
            pin = pins_before.get(name)
            # A renewed pin is another object, even if it expires at the same time as before.
            self._pins[name] = pin if pin is not None and pin.value is pinned else _Observed(pinned, now)
        self._stamps = metadata.stamps
        self._note_index(metadata)

    def _note_index(self, metadata: GroupMetadata) -> None:
        self._indexes = [observed for observed in self._indexes if observed[1] > metadata.forgotten]
        if self._indexes and self._now < self._indexes[-1][0] + self._index_seconds:
            return
        self._indexes.append((self._now, metadata.applied))
        if len(self._indexes) > MAX_STAMPS:
            self._indexes = self._indexes[::2]
            self._index_seconds *= 2

    def due(self, metadata: GroupMetadata, *, writer_seconds: float, retention: float | None) -> Expire | None:
        """Return what has expired, or None. `retention` is how many seconds changes are kept, if that is known.

        Replicas compare stamps, so only what is stamped earlier than everything that has to stay may expire.
        """
        silent, pinned = self._now - writer_seconds, self._now - MAX_PIN_MILLISECONDS / 1000
        writers = _below((observed.value.at, observed.since <= silent) for observed in self._writers.values())
        pins = _below((observed.value.expires, observed.since <= pinned) for observed in self._pins.values())
        changes = 0 if retention is None or not metadata.changes else self._applied_before(self._now - retention)
        if not any(metadata.forgotten < index <= changes for _, index in self._stamps):
            changes = 0
        expire = Expire(pins, writers, changes)
        return None if expire == Expire() else expire

    def bounds(self) -> Iterator[int]:
        """Yield upper bounds for the first log time, past which something would be older than it was observed to be."""
        for writer in self._writers.values():
            yield writer.value.at + self._milliseconds(writer.since)
        for pin in self._pins.values():
            # When the pin was requested is unknown, but no pin may last longer than this.
            yield pin.value.expires - MAX_PIN_MILLISECONDS + self._milliseconds(pin.since)
        for at, index in self._stamps:
            yield at + round(1000 * self._age(index))

    def _milliseconds(self, since: float) -> int:
        return round(1000 * (self._now - since))

    def _applied_before(self, time: float) -> int:
        return max((applied for since, applied in self._indexes if since <= time), default=0)

    def _age(self, index: int) -> float:
        """Return for how many seconds an index is known to be applied."""
        return self._now - next((since for since, applied in self._indexes if applied >= index), self._now)


def _below(stamps: Iterator[tuple[int, bool]]) -> int:
    """Return the highest due stamp that is below all stamps that are not due; 0 if there is none."""
    known = list(stamps)
    kept = min((stamp for stamp, is_due in known if not is_due), default=None)
    return max((stamp for stamp, is_due in known if is_due and (kept is None or stamp < kept)), default=0)
