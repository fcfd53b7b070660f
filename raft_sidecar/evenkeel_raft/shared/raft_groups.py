"""What the agent asks of the raft groups of its store: the seam between the protocol's sidecar half and raft.

The sidecar's host implements `Groups`; tests and the explorer put models in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol

import msgspec

from evenkeel.protocol.group_configuration import Configuration
from evenkeel.protocol.keys import table_name
from evenkeel.protocol.leader_decision import GroupView
from evenkeel.protocol.records import ReplicaId, StoreSettings
from evenkeel.protocol.replica_decision import Start
from evenkeel.versions import VersionRange
from evenkeel_raft.shared.identity import Address

__all__ = ["GroupReport", "Groups", "MetastoreMark", "Partition"]


class Partition(NamedTuple):
    """A partition by name; `table` is the table's key, `<name>.<uid>`."""

    table: str
    partition: int

    def fields(self, *, plan: int = 0) -> dict[str, str | int]:
        """What a line of the log says of it: the table as users call it, and the plan where it is known."""
        named: dict[str, str | int] = {"table": table_name(self.table), "partition": self.partition}
        return {**named, "plan": plan} if plan else named


class MetastoreMark(NamedTuple):
    """The metastore a volume follows: its cluster, and the highest revision the volume has seen of it."""

    cluster: int
    revision: int
    adopted: str = ""
    """The user's request that the volume followed last, to take one metastore in place of another."""


class GroupReport(msgspec.Struct, frozen=True, gc=False):
    """What a store reports of one replica of its own; rates are up to whoever compares two reports."""

    leading: bool
    term: int
    log_bytes: int
    applied: int
    proposed_bytes: int
    """Since the process began."""
    filling: dict[str, float]
    """Where this replica leads: stores of members that are being filled, and how far (0 to 1) each is."""
    problem: str = ""
    """Why the group does not get on (no quorum, a store that fails, a member that cannot be filled), if so."""
    damaged: bool = False
    """Whether that is about the state itself: it is damaged or lost, or not as other replicas have it."""
    alone: bool = False
    """Whether nobody else votes, so that nobody else could ever lead."""
    bytes: int | None = None
    """Of its data: what a copy of it sends. None where its state machine does not tell."""


class Groups(Protocol):
    """All replicas on this store.

    `on_change` is called on the loop whenever something here may interest the agent: who leads, a configuration that
    was logged or applied, a member that caught up, answers again or no more, a commit that a quorum now knows. Starting
    and destroying may fail with DiskFullError or WireError, having done nothing that counts; they are then asked again.
    """

    on_change: Callable[[Partition], None]
    on_machine: Callable[[], None]
    """Called when a state machine has connected or gone."""

    @property
    def version(self) -> int:
        """The cluster version that this volume has seen last."""
        ...

    def set_version(self, version: int) -> None:
        """Work by this cluster version from now on, also after a restart."""
        ...

    def machine_supports(self) -> VersionRange | None:
        """The cluster versions that the state machine can work with; None while none is connected."""
        ...

    def running(self) -> Mapping[Partition, ReplicaId]:
        """The replicas of this store, durable ones only and none that is being destroyed; asked often."""
        ...

    def newest_held(self, partition: Partition) -> int:
        """The highest replica id this volume ever held of the group, 0 where it never held one."""
        ...

    def remembered(self) -> MetastoreMark | None:
        """The metastore this volume followed so far."""
        ...

    async def remember(self, mark: MetastoreMark) -> None:
        """Make the mark durable; returns when it is."""
        ...

    def set_peers(self, peers: Mapping[str, Address]) -> None:
        """Know these stores and no others; a process that begins without a metastore begins with the last it knew."""
        ...

    def limit_copies(self, limits: Mapping[str, float]) -> None:
        """Copy no more bytes a second of these tables than that, and of others what the store's own limit allows."""
        ...

    def throttle(self, settings: StoreSettings | None) -> None:
        """Keep to the throttles of the StoreCluster, or to the process's own where there are none (None).

        A process that begins without a metastore begins with the last it knew.
        """
        ...

    async def start(self, partition: Partition, start: Start) -> None:
        """Start a replica; returns when it is durable that this volume holds it."""
        ...

    async def destroy(self, partition: Partition, replica: ReplicaId) -> None:
        """End a replica and delete its data, raft's and the state machine's; returns when both are gone for good."""
        ...

    def leading(self, partition: Partition) -> GroupView | None:
        """The group as its leader sees it; None unless this store's replica leads."""
        ...

    def led_elsewhere(self, partition: Partition) -> bool:
        """Whether this store's replica knows of a leader on another store."""
        ...

    def leading_term(self, partition: Partition) -> int:
        """The term in which this store's replica leads, whether or not it can serve; 0 where it does not lead."""
        ...

    def propose(self, partition: Partition, configuration: Configuration) -> bool:
        """Log a configuration; false where that is not possible now."""
        ...

    def transfer(self, partition: Partition, to: ReplicaId) -> bool:
        """Hand leadership over; false where that is not possible now."""
        ...

    def set_leadership_inhibited(self, leadership_inhibited: bool) -> None:
        """Hand over what is led here, and campaign only where nobody else does, for as long as that is said."""
        ...

    def keep_awake(self, partition: Partition, awake: bool) -> None:
        """Let the group not fall asleep while there is a change to carry out."""
        ...

    async def ask_leader(self, partition: Partition, replica: ReplicaId, stores: Iterable[str]) -> bool:
        """Whether a leader, on one of these stores and just confirmed by a quorum, says the replica is no member.

        False where nobody could say so within an election timeout.
        """
        ...

    def clock_ahead(self) -> int:
        """How many seconds the store's wall clock is ahead of most stores', behind where negative; 0 if it is close."""
        ...

    def received(self) -> tuple[int, float]:
        """Bytes of snapshots that came in since the process began, and the seconds in which any did."""
        ...

    def reports(self) -> Mapping[Partition, GroupReport]:
        """What there is to report of each replica."""
        ...
