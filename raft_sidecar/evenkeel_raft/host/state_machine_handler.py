"""Handles requests from the state machine, and its connecting and disconnecting."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from evenkeel.versions import VersionRange
from evenkeel.wire.socket_messages import (
    Busy,
    Doubt,
    Drained,
    Hello,
    NotLeader,
    ProposeOutcome,
    ReadOutcome,
    Unavailable,
)
from evenkeel_raft.host.host_context import BackgroundTasks
from evenkeel_raft.host.host_maintenance import HostMaintenance
from evenkeel_raft.host.raft_replica import Replica

__all__ = ["StateMachineHandler"]


class StateMachineHandler:
    """Handles what arrives on the state-machine socket. The host sets `maintenance` before anything connects."""

    maintenance: HostMaintenance

    def __init__(self, replicas: Mapping[int, Replica], *, tasks: BackgroundTasks) -> None:
        self.full = False
        """Whether the disk is full, so that nothing can be logged."""
        self.supports: VersionRange | None = None
        """Cluster versions that the state machine supports; None while it is not connected."""
        self.on_state_machine: Callable[[], None] = lambda: None
        self._replicas = replicas
        self._tasks = tasks

    def connected(self, hello: Hello) -> None:
        """Open every group, because a state machine has connected."""
        self.supports = hello.supported
        self.on_state_machine()
        self.maintenance.on_machine_connected()
        for replica in self._replicas.values():
            if not replica.stopped:
                replica.applier.open()

    def disconnected(self) -> None:
        """Close every group and hand over leadership, because the state machine has disconnected."""
        self.supports = None
        self.on_state_machine()
        for replica in self._replicas.values():
            replica.applier.close()
        self.maintenance.on_machine_disconnected()

    def propose(self, group: int, replica: int, data: bytes, answer: Callable[[ProposeOutcome], None]) -> None:
        """Propose an entry."""
        found = self._find(group, replica)
        if found is None:
            answer(NotLeader())
        elif self.full:
            answer(Busy())
        else:
            found.proposals.propose(data, answer)

    def read_index(self, group: int, replica: int, answer: Callable[[ReadOutcome], None]) -> None:
        """Find the index that must be applied before a read is served."""
        found = self._find(group, replica)
        if found is None:
            answer(Unavailable())
        else:
            found.reads.read_index(answer)

    def doubt(self, group: int, replica: int, doubt: Doubt) -> None:
        """Record a doubt about a group's state; hand over leadership if the state is unfit."""
        found = self._find(group, replica)
        if found is not None:
            if doubt.detail and doubt.detail != found.applier.doubt.detail:
                self.maintenance.health.check_next(found)
            found.applier.set_doubt(doubt)
            if doubt.unfit:
                self.maintenance.hand_over(found)

    def size(self, group: int, replica: int, size: int) -> None:
        """Record the size of a snapshot of a group."""
        found = self._find(group, replica)
        if found is not None:
            found.applier.size = size
            found.last_report = None

    def drain(self, answer: Callable[[Drained], None]) -> None:
        """Hand over all leaderships, because the state machine is stopping."""
        self._tasks.spawn(self._hand_over_all(answer))

    async def _hand_over_all(self, answer: Callable[[Drained], None]) -> None:
        answer(Drained(await self.maintenance.hand_over_all()))

    def _find(self, group: int, number: int) -> Replica | None:
        replica = self._replicas.get(group)
        return replica if replica is not None and replica.id[1] == number and not replica.stopped else None
