"""Write tokens that were applied, and their results: the last 1,024 of each writer.

A transaction works on copies of the writers that it changes, so a failed one leaves no trace.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import NamedTuple

from msgspec import Struct

from evenkeel_store.engine.log_entries import TOKENS_KEPT

__all__ = ["LastUse", "TokenUse", "UncommittedTokens", "WriteTokens"]


class TokenUse(Struct, array_like=True, frozen=True, gc=False):
    """An applied token; `result` is empty if the write was carried out."""

    writer: str
    sequence: int
    result: str
    at: int


class LastUse(NamedTuple):
    """A writer's last use of a token. Every further use changes it, whatever its stamp."""

    at: int
    kept: int
    """How many of the writer's tokens are stored."""
    oldest: int
    """The lowest sequence of those."""


class _Writer:
    __slots__ = ("last", "oldest", "results")

    def __init__(self) -> None:
        self.results: dict[int, str] = {}
        self.oldest: list[int] = []
        self.last = 0

    def copy(self) -> _Writer:
        made = _Writer()
        made.results, made.oldest, made.last = self.results.copy(), self.oldest.copy(), self.last
        return made

    def is_new(self, sequence: int) -> bool:
        if sequence in self.results:
            return False
        return len(self.results) < TOKENS_KEPT or sequence > self.oldest[0]

    def use(self, sequence: int, result: str, at: int) -> None:
        self.results[sequence] = result
        heapq.heappush(self.oldest, sequence)
        self.last = max(self.last, at)
        if len(self.results) > TOKENS_KEPT:
            del self.results[heapq.heappop(self.oldest)]


class WriteTokens:
    """The tokens of one group."""

    def __init__(self, uses: Iterable[TokenUse] = ()) -> None:
        self._writers: dict[str, _Writer] = {}
        self.newest = 0
        """The latest time at which a token was used."""
        for use in uses:
            self.use(use)

    def __len__(self) -> int:
        return len(self._writers)

    def is_new(self, writer: str, sequence: int) -> bool:
        """Whether the token was never applied, as far as is known: False for tokens too old to be stored."""
        known = self._writers.get(writer)
        return known is None or known.is_new(sequence)

    def result(self, writer: str, sequence: int) -> str | None:
        """Return the result of a token; None if it was never applied or is no longer stored."""
        known = self._writers.get(writer)
        return None if known is None else known.results.get(sequence)

    def use(self, use: TokenUse) -> None:
        """Add a token, and drop the oldest of its writer if there are too many."""
        self._writers.setdefault(use.writer, _Writer()).use(use.sequence, use.result, use.at)
        self.newest = max(self.newest, use.at)

    def silent_since(self, time: int) -> list[str]:
        """Return the writers whose last use is not later than a time."""
        return [name for name, writer in self._writers.items() if writer.last <= time]

    def used_after(self, time: int) -> list[str]:
        """Return the writers whose last use is later than a time."""
        return [name for name, writer in self._writers.items() if writer.last > time]

    def times(self) -> list[int]:
        """Return the time of each writer's last use."""
        return [writer.last for writer in self._writers.values()]

    def last_uses(self) -> dict[str, LastUse]:
        """Return the last use of each writer."""
        return {
            name: LastUse(writer.last, len(writer.results), writer.oldest[0]) for name, writer in self._writers.items()
        }

    def forget(self, writers: Iterable[str]) -> None:
        """Forget writers."""
        for writer in writers:
            self._writers.pop(writer, None)

    def begin(self) -> UncommittedTokens:
        """Return a copy-on-write view for one transaction."""
        return UncommittedTokens(self)

    def all(self) -> list[TokenUse]:
        """Return all stored tokens, in an order that recreates the same state."""
        return [
            TokenUse(name, sequence, writer.results[sequence], writer.last)
            for name, writer in sorted(self._writers.items())
            for sequence in sorted(writer.results)
        ]


class UncommittedTokens:
    """The tokens after a transaction; writers are copied when they are first changed."""

    def __init__(self, tokens: WriteTokens) -> None:
        self._tokens = tokens
        self._touched: dict[str, _Writer] = {}
        self.uses: list[TokenUse] = []

    def is_new(self, writer: str, sequence: int) -> bool:
        """Whether the token was never applied, before the transaction or in it."""
        touched = self._touched.get(writer)
        return self._tokens.is_new(writer, sequence) if touched is None else touched.is_new(sequence)

    def use(self, use: TokenUse) -> None:
        """Add a token."""
        touched = self._touched.get(use.writer)
        if touched is None:
            known = self._tokens._writers.get(use.writer)
            touched = self._touched[use.writer] = _Writer() if known is None else known.copy()
        touched.use(use.sequence, use.result, use.at)
        self.uses.append(use)
