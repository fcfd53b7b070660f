"""Proposals of one replica that wait for their outcome."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from evenkeel.wire.socket_messages import Busy, Committed, NotLeader, ProposeOutcome, Unknown
from evenkeel_raft.core.errors import Refusal, RefusedError
from evenkeel_raft.core.raft_types import Entry
from evenkeel_raft.core.rawnode import RawNode
from evenkeel_raft.host.host_context import HostCounters

__all__ = ["Proposals"]

_NO_HINT: Final = NotLeader()


class Proposals:
    """The proposals of one replica, in log order."""

    def __init__(
        self,
        node: RawNode,
        *,
        store: str,
        store_of: Callable[[int], str | None],
        counters: HostCounters,
        enqueue: Callable[[], None],
    ) -> None:
        self.bytes = 0
        """Bytes proposed since the process started."""
        self._node = node
        self._store = store
        self._store_of = store_of
        self._counters = counters
        self._enqueue = enqueue
        self._waiting: deque[tuple[int, int, Callable[[ProposeOutcome], None]]] = deque()

    def propose(self, data: bytes, answer: Callable[[ProposeOutcome], None]) -> None:
        """Append an entry to the log; `answer` is called once its outcome is known."""
        try:
            index = self._node.propose(data)
        except RefusedError as refused:
            answer(self._refusal(refused))
            return
        self._waiting.append((index, self._node.term, answer))
        self._counters.proposals += 1
        self._counters.proposed_bytes += len(data)
        self.bytes += len(data)
        self._enqueue()

    def on_committed(self, entries: list[Entry]) -> None:
        """Answer all proposals up to the last of these committed entries."""
        first = entries[0].index
        for index, term, answer in self._take(entries[-1].index):
            is_ours = index >= first and entries[index - first].term == term
            answer(Committed(index, term) if is_ours else Unknown())

    def on_restored(self, index: int) -> None:
        """Answer the proposals that a snapshot contains: their entries are never handed out to be applied.

        A leader that lost its state accepts proposals, and members may apply them before one of them sends its state.
        """
        for at, term, answer in self._take(index):
            answer(Committed(at, term) if self._node.term_at(at) == term else Unknown())

    def give_up(self) -> None:
        """Answer all proposals with an unknown outcome."""
        waiting, self._waiting = self._waiting, deque()
        for _, _, answer in waiting:
            answer(Unknown())

    def _take(self, last: int) -> Iterator[tuple[int, int, Callable[[ProposeOutcome], None]]]:
        while self._waiting and self._waiting[0][0] <= last:
            yield self._waiting.popleft()

    def _refusal(self, refused: RefusedError) -> ProposeOutcome:
        if refused.reason is Refusal.BUSY:
            return Busy()
        store = self._store_of(refused.leader)
        return NotLeader(store) if store is not None and store != self._store else _NO_HINT
