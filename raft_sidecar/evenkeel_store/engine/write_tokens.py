"""Which tokens were applied, and what came of them: the last 1,024 of each writer.

A transaction works on copies of the writers it touches, so that one that fails leaves nothing behind.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import NamedTuple

from msgspec import Struct

from evenkeel_store.engine.log_entries import TOKENS_KEPT

__all__ = ["LastUse", "TokenUse", "UncommittedTokens", "WriteTokens"]


class TokenUse(Struct, array_like=True, frozen=True, gc=False):
    """A token that was applied; `result` is empty where everything was done that was asked."""

    writer: str
    sequence: int
    result: str
    at: int


class LastUse(NamedTuple):
    """A writer's last token. Every further one changes it, whatever its stamp."""

    at: int
    kept: int
    """How many of its tokens are kept."""
    oldest: int
    """The lowest of those."""


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
        """The newest time at which one was used."""
        for use in uses:
            self.use(use)

    def __len__(self) -> int:
        return len(self._writers)

    def is_new(self, writer: str, sequence: int) -> bool:
        """Whether no entry with this token was applied: neither one we know of nor one we had to forget."""
        known = self._writers.get(writer)
        return known is None or known.is_new(sequence)

    def result(self, writer: str, sequence: int) -> str | None:
        """Return what came of a token; None where it never was applied, or long ago."""
        known = self._writers.get(writer)
        return None if known is None else known.results.get(sequence)

    def use(self, use: TokenUse) -> None:
        """Take note of a token, and forget the oldest of its writer where there are too many."""
        self._writers.setdefault(use.writer, _Writer()).use(use.sequence, use.result, use.at)
        self.newest = max(self.newest, use.at)

    def silent_since(self, time: int) -> list[str]:
        """Name the writers whose last token is not younger than a time."""
        return [name for name, writer in self._writers.items() if writer.last <= time]

    def used_after(self, time: int) -> list[str]:
        """Name the writers whose last token is younger than a time."""
        return [name for name, writer in self._writers.items() if writer.last > time]

    def times(self) -> list[int]:
        """Return when each writer used its last token."""
        return [writer.last for writer in self._writers.values()]

    def last_uses(self) -> dict[str, LastUse]:
        """Return the last token of each writer."""
        return {
            name: LastUse(writer.last, len(writer.results), writer.oldest[0]) for name, writer in self._writers.items()
        }

    def forget(self, writers: Iterable[str]) -> None:
        """Forget writers."""
        for writer in writers:
            self._writers.pop(writer, None)

    def draft(self) -> UncommittedTokens:
        """Begin to change tokens without changing these."""
        return UncommittedTokens(self)

    def all(self) -> list[TokenUse]:
        """Return every token that is kept, in an order in which `use` ends at the same state."""
        return [
            TokenUse(name, sequence, writer.results[sequence], writer.last)
            for name, writer in sorted(self._writers.items())
            for sequence in sorted(writer.results)
        ]


class UncommittedTokens:
    """Tokens as they will be once a transaction is durable; writers are copied when they are first touched."""

    def __init__(self, tokens: WriteTokens) -> None:
        self._tokens = tokens
        self._touched: dict[str, _Writer] = {}
        self.uses: list[TokenUse] = []

    def is_new(self, writer: str, sequence: int) -> bool:
        """Whether no entry with this token was applied, before or within the draft."""
        touched = self._touched.get(writer)
        return self._tokens.is_new(writer, sequence) if touched is None else touched.is_new(sequence)

    def use(self, use: TokenUse) -> None:
        """Take note of a token."""
        touched = self._touched.get(use.writer)
        if touched is None:
            known = self._tokens._writers.get(use.writer)
            touched = self._touched[use.writer] = _Writer() if known is None else known.copy()
        touched.use(use.sequence, use.result, use.at)
        self.uses.append(use)
