"""Log time: each partition's own clock, independent of wall clocks.

Pins, write tokens and changes expire by log time, in milliseconds. It is part of a group's replicated state
(`GroupMetadata.time`) and advances only with the log:

- A leader stamps an entry with the log time of the last entry applied here, plus the time that its monotonic clock has
  measured since. A wall clock that is wrong or jumps has no effect.
- Applying an entry moves log time to its stamp, but never back, and not at all if the stamp is more than
  `STEP_MILLISECONDS` ahead. Every replica computes the same from the log alone. Leaders stay within that bound: they
  log a `LogTime` at least every half hour while something waits to expire (`tick_milliseconds`).
- Time during which no replica runs does not count. What expires then lives longer, never shorter.

The first `LogTime` entry of a group starts log time at its index on every replica (`begin`). The first release does not
know that entry, so before it stamps are applied unchanged, and leaders of that release compare them with their wall
clocks. Until then a leader of this release stamps with the wall clock, or with its reading if that is later, and
expires only what it has observed for the whole period (`expiry_clock`).
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
"""How far a reading may be ahead of a stamp when it is applied: that happens some time after stamping."""


class _Anchor(NamedTuple):
    newest: int
    stamps: AppliedTimestamps
    """`newest` and `stamps` are the group's when it was observed."""
    reading: int
    at: float
    """The monotonic clock at that reading."""


class LogClocks:
    """Reads the log time of all groups. Used on the event loop; `stamp` and `read` on any thread."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._anchors: dict[int, _Anchor] = {}

    def observe(self, group: Group) -> None:
        """Update a group's clock after entries were applied."""
        newest, stamps, known = group.newest, group.stamps, self._anchors.get(group.number)
        reading = group.metadata.time or max(newest, stamps.last) or group.pinned_after
        if not reading or (known is not None and known[:2] == (newest, stamps)):
            return
        if known is not None and reading <= (read := self._read(known)) <= reading + _TOLERANCE_MILLISECONDS:
            reading = read
        self._anchors[group.number] = _Anchor(newest, stamps, reading, self._now())

    def forget(self, group: int) -> None:
        """Drop the clock of a closed group."""
        self._anchors.pop(group, None)

    def stamp(self, group: Group, *, wall: int) -> int:
        """Return the log time for a new entry."""
        reading = self.read(group, wall=wall)
        # Later than all stamps so far: what expires by those must not include this entry.
        return reading if group.metadata.time else max(reading, group.newest + 1)

    def read(self, group: Group, *, wall: int) -> int:
        """Return the log time; `wall`, the wall clock, counts while the group keeps no log time."""
        newest, known = group.newest, self._anchors.get(group.number)
        reading = newest if known is None or known.newest > newest else max(newest, self._read(known))
        return min(reading, newest + STEP_MILLISECONDS) if group.metadata.time else max(reading, wall)

    def _read(self, anchor: _Anchor) -> int:
        return anchor.reading + round(1000 * (self._now() - anchor.at))


def tick_milliseconds(group: int) -> int:
    """Return how far log time may fall behind before the leader logs it.

    The period differs by group: log time begins in all groups of a cluster at once, and if all of them logged it at the
    same moment, writes would be delayed.
    """
    return _TICK_MILLISECONDS - crc32(b"%d" % group) % _SPREAD_MILLISECONDS


def is_pending(group: Group) -> bool:
    """Whether a group has something that will expire."""
    metadata = group.metadata
    return bool(metadata.pins or (metadata.changes and metadata.stamps) or len(group.tokens))


def within_bounds(metadata: GroupMetadata, entry: Expire) -> tuple[int, Expire]:
    """Return the log time after an `Expire` entry, and its bounds, reduced by how far its stamp is ahead of log time.

    An entry without a stamp is from a leader without log time: only its index of changes counts.
    """
    if not metadata.time:
        return 0, entry
    after = advanced(metadata.time, entry.at)
    if not entry.at:
        return after, Expire(changes=entry.changes)
    ahead = max(0, entry.at - after)
    return after, Expire(max(0, entry.pins - ahead), max(0, entry.writers - ahead), entry.changes, entry.at)


def beginning(bounds: Iterable[int], *, reading: int) -> int:
    """Return the first log time: the leader's reading, or less if something would expire early."""
    return max(1, min([reading, *bounds]))


def begin(group: Group, index: int, at: int) -> Step:
    """Return the step that begins a group's log time; earlier stamps that are ahead of it are moved back to it.

    Log time begins at most `STEP_MILLISECONDS` after the newest stamp.
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
    """Return the newest stamp in the replicated state, which unlike `Group.newest` is the same after a restart."""
    stamps = (stamp for stamp, _ in group.metadata.stamps)
    return max([group.pinned_after, *group.tokens.times(), *stamps])
