"""Extents: which round holds which range of one group's live entries.

They are stored as columns of machine integers, not as objects: there is an extent per round and group, and hundreds of
groups may have entries in thousands of rounds each.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

__all__ = ["Extents"]

Dropped = list[tuple[int, int]]


class Extents:
    """Consecutive ranges of indexes without gaps, each with its round and its size in bytes.

    Methods that remove entries return (round, bytes) for each affected round. The entries of one extent count equally.
    """

    __slots__ = ("_firsts", "_rounds", "_sizes", "end")

    def __init__(self) -> None:
        self._firsts = array("q")
        self._rounds = array("q")
        self._sizes = array("q")
        self.end = 0  # one past the last index

    def extend(self, firsts: Sequence[int], rounds: Sequence[int], sizes: Sequence[int], *, end: int) -> None:
        """Append several extents that follow the last one."""
        self._firsts.extend(firsts)
        self._rounds.extend(rounds)
        self._sizes.extend(sizes)
        self.end = end

    def __iter__(self) -> Iterator[tuple[int, int, int, int]]:
        ends = [*self._firsts[1:], self.end]
        yield from zip(self._firsts, ends, self._rounds, self._sizes, strict=False)

    def append(self, first: int, end: int, *, round_: int, size: int) -> Dropped:
        """Replace everything from `first` on by the entries [first, end)."""
        dropped = self.cut(first) if first < self.end else []
        self._firsts.append(first)
        self._rounds.append(round_)
        self._sizes.append(size)
        self.end = end
        return dropped

    def cut(self, first: int) -> Dropped:
        """Remove the entries from an index on."""
        at = bisect_left(self._firsts, first)
        dropped = list(zip(self._rounds[at:], self._sizes[at:], strict=True))
        ends = self._firsts[at] if at < len(self._firsts) else self.end
        del self._firsts[at:], self._rounds[at:], self._sizes[at:]
        if at and first < ends:
            dropped += self._shrink(at - 1, keep=first - self._firsts[at - 1], of=ends - self._firsts[at - 1])
        self.end = first if at else 0
        return dropped

    def compact(self, index: int) -> Dropped:
        """Remove the entries up to an index."""
        if index + 1 >= self.end:
            return self.cut(0)
        at = bisect_right(self._firsts, index + 1) - 1
        if at < 0:
            return []
        dropped = list(zip(self._rounds[:at], self._sizes[:at], strict=True))
        del self._firsts[:at], self._rounds[:at], self._sizes[:at]
        first, end = self._firsts[0], self._firsts[1] if len(self._firsts) > 1 else self.end
        if first <= index:
            dropped += self._shrink(0, keep=end - index - 1, of=end - first)
            self._firsts[0] = index + 1
        return dropped

    def _shrink(self, at: int, *, keep: int, of: int) -> Dropped:
        size = self._sizes[at]
        # An entry takes several bytes, so the rest is never 0 and a round with a live entry never counts as dead.
        self._sizes[at] = size * keep // of
        return [(self._rounds[at], size - self._sizes[at])]

    def inside(self, first: int, last: int, *, round_: int) -> list[tuple[int, int]]:
        """Return the ranges [first, end) that a round holds within two indexes, both inclusive."""
        firsts = self._firsts
        begin, beyond = max(bisect_right(firsts, first) - 1, 0), bisect_right(firsts, last)
        held = (at for at in range(begin, beyond) if self._rounds[at] == round_)
        # The first extent may end before the range begins, because entries were truncated.
        ranges = ((max(firsts[at], first), min(self._end_of(at), last + 1)) for at in held)
        return [(low, high) for low, high in ranges if low < high]

    def size_of(self, first: int, end: int) -> int:
        """Return the bytes of the extents that together cover exactly [first, end), or 0 if none do."""
        at, beyond = bisect_left(self._firsts, first), bisect_left(self._firsts, end)
        if at == beyond or self._firsts[at] != first or self._end_of(beyond - 1) != end:
            return 0
        return sum(self._sizes[at:beyond])

    def _end_of(self, at: int) -> int:
        return self._firsts[at + 1] if at + 1 < len(self._firsts) else self.end

    def move(self, first: int, end: int, *, round_: int, size: int) -> Dropped:
        """Record that another round now holds whole extents, from `first` up to `end`."""
        at, beyond = bisect_left(self._firsts, first), bisect_left(self._firsts, end)
        dropped = list(zip(self._rounds[at:beyond], self._sizes[at:beyond], strict=True))
        self._firsts[at:beyond] = array("q", (first,))
        self._rounds[at:beyond] = array("q", (round_,))
        self._sizes[at:beyond] = array("q", (size,))
        return dropped
