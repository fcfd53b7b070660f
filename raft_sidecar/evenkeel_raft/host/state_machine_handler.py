"""Requests from the state machine, and its coming and going."""

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
    """What the sidecar's end of the socket calls."""

    def __init__(self, replicas: Mapping[int, Replica], *, tasks: BackgroundTasks) -> None:
        self.upkeep: HostMaintenance | None = None
        self.full = False
        """Whether nothing can be logged for lack of space."""
        self.supports: VersionRange | None = None
        """The cluster versions that the state machine can work with; None while none is connected."""
        self.on_machine: Callable[[], None] = lambda: None
        self._replicas = replicas
        self._tasks = tasks

    def connected(self, hello: Hello) -> None:
        """A state machine is there: open every group."""
        self.supports = hello.supported
        self.on_machine()
        if self.upkeep is not None:
            self.upkeep.machine_here()
        for replica in self._replicas.values():
            if not replica.stopped:
                replica.applier.open()

    def disconnected(self) -> None:
        """It is gone: let others lead."""
        self.supports = None
        self.on_machine()
        for replica in self._replicas.values():
            replica.applier.close()
        if self.upkeep is not None:
            self.upkeep.machine_gone()

    def propose(self, group: int, replica: int, data: bytes, answer: Callable[[ProposeOutcome], None]) -> None:
        """Log an entry."""
        found = self._find(group, replica)
        if found is None:
            answer(NotLeader())
        elif self.full:
            answer(Busy())
        else:
            found.propose(data, answer)

    def read_index(self, group: int, replica: int, answer: Callable[[ReadOutcome], None]) -> None:
        """Find the index from which on a read may be answered."""
        found = self._find(group, replica)
        if found is None:
            answer(Unavailable())
        else:
            found.read_index(answer)

    def doubt(self, group: int, replica: int, doubt: Doubt) -> None:
        """Know that a group's state may be wrong; one that is known to be is better led elsewhere."""
        found = self._find(group, replica)
        if found is not None:
            if doubt.detail and doubt.detail != found.applier.doubt.detail and self.upkeep is not None:
                self.upkeep.attendance.suspect(found)
            found.applier.doubted(doubt)
            if doubt.unfit and self.upkeep is not None:
                self.upkeep.hand_over(found)

    def size(self, group: int, replica: int, size: int) -> None:
        """Know how many bytes a snapshot of a group would have."""
        found = self._find(group, replica)
        if found is not None:
            found.applier.size = size
            found.last_report = None

    def drain(self, answer: Callable[[Drained], None]) -> None:
        """Hand over all leaderships."""
        self._tasks.spawn(self._drain(answer))

    async def _drain(self, answer: Callable[[Drained], None]) -> None:
        answer(Drained(await self.upkeep.drain() if self.upkeep is not None else 0))

    def _find(self, group: int, number: int) -> Replica | None:
        replica = self._replicas.get(group)
        return replica if replica is not None and replica.id[1] == number and not replica.stopped else None
