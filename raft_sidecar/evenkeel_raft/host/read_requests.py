"""Linearizable reads of one replica, which wait until a quorum has confirmed the leader."""

from __future__ import annotations

from collections.abc import Callable

from evenkeel.protocol.records import ReplicaId
from evenkeel.protocol.replica_decision import leader_excludes
from evenkeel.wire.socket_messages import ReadAt, ReadOutcome, Unavailable
from evenkeel_raft.core.errors import RefusedError
from evenkeel_raft.core.raft_types import ReadState
from evenkeel_raft.core.rawnode import RawNode
from evenkeel_raft.host.host_context import HostCounters
from evenkeel_raft.shared.raft_configurations import configuration_of

__all__ = ["ReadRequests"]


class ReadRequests:
    """The read requests of one replica that wait for their read index.

    `before_answer` is called before each answer: entries up to the index must be on their way to the state machine.
    """

    def __init__(
        self,
        node: RawNode,
        *,
        counters: HostCounters,
        enqueue: Callable[[], None],
        before_answer: Callable[[], None],
    ) -> None:
        self._node = node
        self._counters = counters
        self._enqueue = enqueue
        self._before_answer = before_answer
        self._waiting: dict[int, Callable[[int], None]] = {}
        self._number = 0

    def read_index(self, answer: Callable[[ReadOutcome], None]) -> None:
        """Find the index that the state machine must have applied before it serves a read that starts now."""
        self._counters.reads += 1
        self._request(lambda index: answer(ReadAt(index) if index else Unavailable()))

    def check_excluded(self, replica: ReplicaId, answer: Callable[[bool], None]) -> None:
        """Answer whether a replica is excluded from the group, once a quorum has confirmed that this one leads."""

        def confirmed(index: int) -> None:
            answer(bool(index) and self._excludes(replica))

        if self._node.leading:
            self._request(confirmed)
        else:
            answer(False)

    def on_read_state(self, read: ReadState) -> None:
        """Answer a request; index 0 means that the read index is unavailable."""
        answer = self._waiting.pop(read.context, None)
        if answer is not None:
            self._before_answer()
            answer(read.index)

    def give_up(self) -> None:
        """Answer all requests: their read index is unavailable."""
        for context in list(self._waiting):
            self.on_read_state(ReadState(context, 0))

    def _request(self, answer: Callable[[int], None]) -> None:
        self._number += 1
        self._waiting[self._number] = answer
        try:
            self._node.read_index(self._number)
        except RefusedError:
            self.on_read_state(ReadState(self._number, 0))
            return
        self._enqueue()

    def _excludes(self, replica: ReplicaId) -> bool:
        return self._node.leading and leader_excludes(
            replica,
            applied=configuration_of(self._node.conf),
            newest=configuration_of(self._node.newest_conf()),
            committed_in_term=self._node.status().committed_in_term,
        )
