"""Linearizable reads without log entries (ReadIndex).

A leader records its commit index, confirms with a round of heartbeats that it still leads, and answers. One round
confirms every read recorded before it was sent. The leader numbers the rounds: if callers' contexts were used, a late
response to an old round could confirm a new one. Before the term's first commit a new leader does not know what is
committed, so reads wait for that commit.

A follower forwards a read under its own number. Numbers start at a random value, so that a response to an earlier
process of this replica is not mistaken for a current one.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from evenkeel_raft.core.raft_types import Random

__all__ = ["ForwardedReads", "LeaderReads", "Read"]

_CONTEXT_SPACE: Final = 1 << 62


class Read:
    """A read in progress at the leader; `origin` is the requesting replica."""

    __slots__ = ("context", "index", "origin", "round")

    def __init__(self, context: int, origin: int) -> None:
        self.context = context
        self.origin = origin
        self.index = 0
        self.round = 0


class LeaderReads:
    """The leader's reads that wait for the term's first commit or for a round of heartbeats."""

    __slots__ = ("_queue", "_waiting", "round", "round_due")

    def __init__(self) -> None:
        self.round = 0
        self.round_due = False
        self._waiting: list[Read] = []
        self._queue: deque[Read] = deque()

    @property
    def idle(self) -> bool:
        """Whether no read is in progress."""
        return not self._queue and not self._waiting

    def wait(self, read: Read) -> None:
        """Hold a read until the term's first commit."""
        self._waiting.append(read)

    def add(self, read: Read, commit: int) -> None:
        """Add a read to the next round."""
        if not self.round_due:
            self.round += 1
            self.round_due = True
        read.index, read.round = commit, self.round
        self._queue.append(read)

    def first_commit(self, commit: int) -> None:
        """Add the held reads to the next round."""
        for read in self._waiting:
            self.add(read, commit)
        self._waiting = []

    def confirmed(self, upto: int) -> list[Read]:
        """Remove and return the reads that rounds up to this one confirm."""
        done: list[Read] = []
        while self._queue and self._queue[0].round <= upto:
            done.append(self._queue.popleft())
        return done

    def drop(self) -> list[Read]:
        """Remove and return all reads, and reset the round number."""
        dropped = [*self._queue, *self._waiting]
        self.round, self.round_due = 0, False
        self._waiting = []
        self._queue.clear()
        return dropped


class ForwardedReads:
    """A follower's reads that wait for the leader's response."""

    __slots__ = ("_next", "_pending")

    def __init__(self, rng: Random) -> None:
        self._next = rng.randrange(_CONTEXT_SPACE)
        self._pending: dict[int, tuple[int, int]] = {}

    @property
    def idle(self) -> bool:
        """Whether no read is outstanding."""
        return not self._pending

    def add(self, context: int, *, deadline: int) -> int:
        """Record a read and return the number to send to the leader."""
        self._next += 1
        self._pending[self._next] = (context, deadline)
        return self._next

    def answered(self, number: int) -> int | None:
        """Remove a read and return its caller's context, or None if it is no longer outstanding."""
        found = self._pending.pop(number, None)
        return None if found is None else found[0]

    def expire(self, now: int) -> list[int]:
        """Remove the reads past their deadline and return their contexts."""
        expired = [number for number, (_, deadline) in self._pending.items() if deadline <= now]
        return [self._pending.pop(number)[0] for number in expired]

    def drop(self) -> list[int]:
        """Remove all reads and return their contexts."""
        contexts = [context for context, _ in self._pending.values()]
        self._pending.clear()
        return contexts
