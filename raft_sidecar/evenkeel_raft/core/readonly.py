"""Linearizable reads without log entries.

A leader notes its commit index, proves to itself by a round of heartbeats that it was still leader afterwards, and
answers. Rounds are numbered by the leader, never by the caller: with callers' contexts a late answer to an old round
could confirm a new one. One round serves every read noted before it was sent. Before the term's first commit a new
leader does not know what is committed, so reads wait for it.

A follower passes a read on under a number of its own. Numbers begin at a random point, or an answer to the number 1
of yesterday's process could be taken for today's.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from evenkeel_raft.core.raft_types import Random

__all__ = ["ForwardedReads", "LeaderReads", "Read"]

_CONTEXT_SPACE: Final = 1 << 62


class Read:
    """A read in progress at the leader; `origin` is the replica that asked."""

    __slots__ = ("context", "index", "origin", "round")

    def __init__(self, context: int, origin: int) -> None:
        self.context = context
        self.origin = origin
        self.index = 0
        self.round = 0


class LeaderReads:
    """Reads that wait for the term's first commit, or for a round of heartbeats."""

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
        """Keep a read until the term's first commit."""
        self._waiting.append(read)

    def add(self, read: Read, commit: int) -> None:
        """Let the read join the next round."""
        if not self.round_due:
            self.round += 1
            self.round_due = True
        read.index, read.round = commit, self.round
        self._queue.append(read)

    def first_commit(self, commit: int) -> None:
        """Let the reads that waited join the next round."""
        for read in self._waiting:
            self.add(read, commit)
        self._waiting = []

    def confirmed(self, upto: int) -> list[Read]:
        """Return the reads that rounds up to this one prove."""
        done: list[Read] = []
        while self._queue and self._queue[0].round <= upto:
            done.append(self._queue.popleft())
        return done

    def drop(self) -> list[Read]:
        """Return all reads, none of which can be answered any more, and begin anew."""
        dropped = [*self._queue, *self._waiting]
        self.round, self.round_due = 0, False
        self._waiting = []
        self._queue.clear()
        return dropped


class ForwardedReads:
    """A follower's reads that the leader has been asked for."""

    __slots__ = ("_next", "_pending")

    def __init__(self, rng: Random) -> None:
        self._next = rng.randrange(_CONTEXT_SPACE)
        self._pending: dict[int, tuple[int, int]] = {}

    @property
    def idle(self) -> bool:
        """Whether none is outstanding."""
        return not self._pending

    def add(self, context: int, *, deadline: int) -> int:
        """Return the number under which to ask the leader."""
        self._next += 1
        self._pending[self._next] = (context, deadline)
        return self._next

    def answered(self, number: int) -> int | None:
        """Return the caller's context, if this is still wanted."""
        found = self._pending.pop(number, None)
        return None if found is None else found[0]

    def expire(self, now: int) -> list[int]:
        """Return the contexts that nobody will answer any more."""
        late = [number for number, (_, deadline) in self._pending.items() if deadline <= now]
        return [self._pending.pop(number)[0] for number in late]

    def drop(self) -> list[int]:
        """Return all contexts."""
        contexts = [context for context, _ in self._pending.values()]
        self._pending.clear()
        return contexts
