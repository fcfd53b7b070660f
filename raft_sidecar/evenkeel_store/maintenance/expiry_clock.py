"""How long this process has seen what waits to expire, measured by its monotonic clock alone.

Before a partition keeps log time (`logtime`), its stamps are wall clocks' readings and prove nothing: a clock may have
been wrong, and leaders of the first release stamp and expire by theirs. A leader of this release then lets go only
what it has itself seen unchanged for the whole period. An age counts from the first look at something, so it is never
too high; another leader, or a process that was restarted, begins again.
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


class _Seen(NamedTuple, Generic[_Kind]):
    as_it_is: _Kind
    since: float


class ExpiryClock:
    """How long one group's writers were silent, its pins stayed as they are, and its indexes were applied."""

    def __init__(self) -> None:
        self._now = 0.0
        self._writers: dict[str, _Seen[LastUse]] = {}
        self._pins: dict[str, _Seen[PinnedAt]] = {}
        self._indexes: list[tuple[float, int]] = []
        self._index_seconds = _INDEX_SECONDS
        self._stamps: tuple[tuple[int, int], ...] = ()

    def look(self, metadata: GroupMetadata, writers: Mapping[str, LastUse], *, now: float) -> None:
        """Take note of a group as it is; `now` is by the monotonic clock."""
        self._now = now
        writers_before, pins_before = self._writers, self._pins
        self._writers, self._pins = {}, {}
        for name, use in writers.items():
            writer = writers_before.get(name)
            self._writers[name] = writer if writer is not None and writer.as_it_is == use else _Seen(use, now)
        for name, pinned in metadata.pins.items():
            pin = pins_before.get(name)
            # A pin that is asked for again is another object, even where its end stays the same.
            self._pins[name] = pin if pin is not None and pin.as_it_is is pinned else _Seen(pinned, now)
        self._stamps = metadata.stamps
        self._note_index(metadata)

    def _note_index(self, metadata: GroupMetadata) -> None:
        self._indexes = [seen for seen in self._indexes if seen[1] > metadata.forgotten]
        if self._indexes and self._now < self._indexes[-1][0] + self._index_seconds:
            return
        self._indexes.append((self._now, metadata.applied))
        if len(self._indexes) > MAX_STAMPS:
            self._indexes = self._indexes[::2]
            self._index_seconds *= 2

    def due(self, metadata: GroupMetadata, *, writer_seconds: float, retention: float | None) -> Expire | None:
        """What has expired; None where nothing has. `retention` is for how many seconds changes are kept, if known.

        Replicas compare stamps. So nothing goes whose stamp is not below the stamps of all that has to stay.
        """
        silent, pinned = self._now - writer_seconds, self._now - MAX_PIN_MILLISECONDS / 1000
        writers = _below((seen.as_it_is.at, seen.since <= silent) for seen in self._writers.values())
        pins = _below((seen.as_it_is.expires, seen.since <= pinned) for seen in self._pins.values())
        changes = 0 if retention is None or not metadata.changes else self._applied_before(self._now - retention)
        if not any(metadata.forgotten < index <= changes for _, index in self._stamps):
            changes = 0
        expire = Expire(pins, writers, changes)
        return None if expire == Expire() else expire

    def bounds(self) -> Iterator[int]:
        """Log times that log time must not begin after, or something would be older by it than it was seen to be."""
        for writer in self._writers.values():
            yield writer.as_it_is.at + self._milliseconds(writer.since)
        for pin in self._pins.values():
            # When it was asked for is not known, only that no pin is asked for for longer.
            yield pin.as_it_is.expires - MAX_PIN_MILLISECONDS + self._milliseconds(pin.since)
        for at, index in self._stamps:
            yield at + round(1000 * self._age(index))

    def _milliseconds(self, since: float) -> int:
        return round(1000 * (self._now - since))

    def _applied_before(self, time: float) -> int:
        return max((applied for since, applied in self._indexes if since <= time), default=0)

    def _age(self, index: int) -> float:
        """For how many seconds an index is known to be applied."""
        return self._now - next((since for since, applied in self._indexes if applied >= index), self._now)


def _below(stamps: Iterator[tuple[int, bool]]) -> int:
    """Return the highest stamp of what is due that is below the stamps of all that is not; 0 where there is none."""
    known = list(stamps)
    kept = min((stamp for stamp, is_due in known if not is_due), default=None)
    return max((stamp for stamp, is_due in known if is_due and (kept is None or stamp < kept)), default=0)
