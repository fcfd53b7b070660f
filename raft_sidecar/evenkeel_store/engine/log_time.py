"""Log time: each partition's own clock, which no wall clock can move.

Pins, writers' tokens and changes expire by log time, in milliseconds. It is part of a group's replicated state
(`Head.time`) and advances only with the log:

- A leader stamps an entry with the log time of the last entry applied here, plus what this process's monotonic clock
  has measured since. A wall clock that is wrong or jumps changes nothing.
- Applying an entry moves log time to its stamp: never back, and not at all where the stamp is more than `STEP` ahead.
  Every replica computes the same, from the log alone. Leaders stay within that bound, and log a `LogTime` at least
  every half hour while something waits to expire (`tick_milliseconds`).
- Time in which no replica runs does not count. What expires then lives longer, never shorter.

The first `LogTime` entry of a group switches this on, from its index on and on every replica (`begin`). Before it, and
with replicas of the first release, which do not know that entry, stamps are applied as they are. Leaders of that
release compare stamps with their wall clocks. So until then a leader stamps with the time of day, or with its reading
where that is later, and lets go only what it has itself seen for the whole period (`ages`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple
from zlib import crc32

import msgspec

from evenkeel_store.engine.group_metadata import (
    MAX_PIN_MILLISECONDS,
    STEP_MILLISECONDS,
    GroupMetadata,
    PinnedAt,
    Step,
    advanced,
)
from evenkeel_store.engine.group_state import AppliedTimestamps, Group
from evenkeel_store.engine.log_entries import Expire
from evenkeel_store.engine.write_tokens import TokenUse

__all__ = ["LogClocks", "begin", "beginning", "is_pending", "tick_milliseconds", "within_bounds"]

_TICK_MILLISECONDS: Final = STEP_MILLISECONDS // 2
_SPREAD_MILLISECONDS: Final = STEP_MILLISECONDS // 4
_TOLERANCE_MILLISECONDS: Final = 60_000
"""How far this store's reading may be ahead of a stamp that it applies: entries take a while from stamp to apply."""


class _Anchor(NamedTuple):
    newest: int
    stamps: AppliedTimestamps
    """What a group had when it was observed."""
    reading: int
    at: float
    """What the monotonic clock said at that reading."""


class LogClocks:
    """Readings of all groups' log times, on the event loop; `stamp` on any thread."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._anchors: dict[int, _Anchor] = {}

    def observe(self, group: Group) -> None:
        """Take note that entries of a group were applied."""
        newest, stamps, known = group.newest, group.stamps, self._anchors.get(group.number)
        reading = group.metadata.time or max(newest, stamps.last) or group.pinned_after
        if not reading or (known is not None and known[:2] == (newest, stamps)):
            return
        if known is not None and reading <= (read := self._read(known)) <= reading + _TOLERANCE_MILLISECONDS:
            reading = read
        self._anchors[group.number] = _Anchor(newest, stamps, reading, self._now())

    def forget(self, group: int) -> None:
        """Take note that a group is closed."""
        self._anchors.pop(group, None)

    def stamp(self, group: Group, *, wall: int) -> int:
        """Return the log time for a new entry."""
        reading = self.read(group, wall=wall)
        # Above all stamps there are, so that what is due by those never includes what is on its way.
        return reading if group.metadata.time else max(reading, group.newest + 1)

    def read(self, group: Group, *, wall: int) -> int:
        """Return the log time; `wall`, the time of day, counts until the group keeps it."""
        newest, known = group.newest, self._anchors.get(group.number)
        reading = newest if known is None or known.newest > newest else max(newest, self._read(known))
        return min(reading, newest + STEP_MILLISECONDS) if group.metadata.time else max(reading, wall)

    def _read(self, anchor: _Anchor) -> int:
        return anchor.reading + round(1000 * (self._now() - anchor.at))


def tick_milliseconds(group: int) -> int:
    """Return how far log time may fall behind before it is logged.

    Each group has its own period: log time begins in all groups of a cluster at once, and writes would wait while all
    of them log it at the same moment.
    """
    return _TICK_MILLISECONDS - crc32(b"%d" % group) % _SPREAD_MILLISECONDS


def is_pending(group: Group) -> bool:
    """Whether something of a group waits to expire."""
    metadata = group.metadata
    return bool(metadata.pins or (metadata.changes and metadata.stamps) or len(group.tokens))


def within_bounds(metadata: GroupMetadata, entry: Expire) -> tuple[int, Expire]:
    """Return the log time after an entry, and what expires by it: later by as much as its stamp is ahead of log time.

    An entry without a stamp is of a leader that knew no log time: of it only the index of changes counts.
    """
    if not metadata.time:
        return 0, entry
    after = advanced(metadata.time, entry.at)
    if not entry.at:
        return after, Expire(changes=entry.changes)
    ahead = max(0, entry.at - after)
    return after, Expire(max(0, entry.pins - ahead), max(0, entry.writers - ahead), entry.changes, entry.at)


def beginning(bounds: Iterable[int], *, reading: int) -> int:
    """Return the log time to begin with: what a leader reads by now, or less where something would expire early."""
    return max(1, min([reading, *bounds]))


def begin(group: Group, index: int, at: int) -> Step:
    """Return the step that begins a group's log time; stamps of before that are ahead of it are moved to it.

    No more than a step passes since the newest stamp that there is.
    """
    metadata, newest = group.metadata, _newest_kept(group)
    at = min(at, newest + STEP_MILLISECONDS) if newest else at
    pins = {
        name: PinnedAt(pin.index, min(pin.expires, at + MAX_PIN_MILLISECONDS)) for name, pin in metadata.pins.items()
    }
    stamps = tuple((min(stamp, at), stamped) for stamp, stamped in metadata.stamps)
    metadata = msgspec.structs.replace(metadata, time=at, pins=pins, stamps=stamps)
    ahead = set(group.tokens.used_after(at))
    uses = [TokenUse(use.writer, use.sequence, use.result, at) for use in group.tokens.all() if use.writer in ahead]
    return Step(group.number, index, uses, metadata=metadata, forgotten_writers=sorted(ahead), time=at)


def _newest_kept(group: Group) -> int:
    """Return the newest stamp in a group's state: unlike `Group.newest` the same on a replica that was restarted."""
    stamps = (stamp for stamp, _ in group.metadata.stamps)
    return max([group.pinned_after, *group.tokens.times(), *stamps])
