"""The agent's interface to the raft groups of its store.

The host implements `Groups`; tests and the explorer substitute models.
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
        """Return fields for a log line: the table's name as users know it, the partition, and the plan if known."""
        named: dict[str, str | int] = {"table": table_name(self.table), "partition": self.partition}
        return {**named, "plan": plan} if plan else named


class MetastoreMark(NamedTuple):
    """The metastore that a volume follows: its cluster, and the highest revision that the volume has seen."""

    cluster: int
    revision: int
    adopted: str = ""
    """The last request of a user to follow another metastore that the volume carried out."""


class GroupReport(msgspec.Struct, frozen=True, gc=False):
    """A store's report of one of its replicas. Counters only grow; the reader computes rates from two reports."""

    leading: bool
    term: int
    log_bytes: int
    applied: int
    proposed_bytes: int
    """Since the process started."""
    filling: dict[str, float]
    """On the leader: by store, the progress (0 to 1) of snapshots that are being sent to members."""
    problem: str = ""
    """Why the group makes no progress, if so: no quorum, a failing store, or a snapshot that cannot be sent."""
    damaged: bool = False
    """Whether the problem is the state itself: damaged, lost, or different from other replicas'."""
    alone: bool = False
    """Whether this replica is the only voter, so no other can lead."""
    bytes: int | None = None
    """The size of its data, as a snapshot sends it; None if the state machine does not report it."""


class Groups(Protocol):
    """All replicas on this store.

    `on_change` is called on the loop when something changed that the agent may act on: the leader, a logged or applied
    configuration, a member that caught up, became silent or responds again, or a commit that a quorum now knows.
    `start` and `destroy` may fail with DiskFullError or WireError without any lasting effect; the agent retries them.
    """

    on_change: Callable[[Partition], None]
    on_state_machine: Callable[[], None]
    """Called when a state machine connected or disconnected."""

    @property
    def version(self) -> int:
        """The last cluster version that this volume has seen."""
        ...

    def set_version(self, version: int) -> None:
        """Use this cluster version from now on, including after a restart."""
        ...

    def machine_supports(self) -> VersionRange | None:
        """Return the cluster versions that the state machine supports; None while none is connected."""
        ...

    def running(self) -> Mapping[Partition, ReplicaId]:
        """Return the durable replicas of this store, without those being destroyed; must be cheap."""
        ...

    def newest_held(self, partition: Partition) -> int:
        """Return the highest replica id that this volume ever held of the group, or 0."""
        ...

    def metastore_mark(self) -> MetastoreMark | None:
        """Return the saved mark of the metastore that this volume follows."""
        ...

    async def save_metastore_mark(self, mark: MetastoreMark) -> None:
        """Save the mark; returns when it is durable."""
        ...

    def set_peers(self, peers: Mapping[str, Address]) -> None:
        """Set the addresses of all other stores; a process that starts without a metastore uses the last ones set."""
        ...

    def limit_copies(self, limits: Mapping[str, float]) -> None:
        """Limit snapshots of these tables to bytes per second; other tables have only the store's limit."""
        ...

    def throttle(self, settings: StoreSettings | None) -> None:
        """Set the throttles of the StoreCluster; None selects the process's own.

        A process that starts without a metastore uses the last ones set.
        """
        ...

    async def start(self, partition: Partition, start: Start) -> None:
        """Start a replica; returns when its creation is durable."""
        ...

    async def destroy(self, partition: Partition, replica: ReplicaId) -> None:
        """Stop a replica and delete its log and its state; returns when both are durably deleted."""
        ...

    def leading(self, partition: Partition) -> GroupView | None:
        """Return the leader's view of the group; None unless this store's replica leads."""
        ...

    def led_elsewhere(self, partition: Partition) -> bool:
        """Whether this store's replica knows of a leader on another store."""
        ...

    def leading_term(self, partition: Partition) -> int:
        """Return the term in which this store's replica leads, whether or not it can serve; 0 if it does not lead."""
        ...

    def propose(self, partition: Partition, configuration: Configuration) -> bool:
        """Propose a configuration; returns false if that is not possible now."""
        ...

    def transfer(self, partition: Partition, to: ReplicaId) -> bool:
        """Hand leadership over; returns false if that is not possible now."""
        ...

    def set_leadership_inhibited(self, leadership_inhibited: bool) -> None:
        """Set whether this store hands its leaderships over and campaigns only after the other voters had time to."""
        ...

    def keep_awake(self, partition: Partition, awake: bool) -> None:
        """Set whether the group must not quiesce, because a change is in progress."""
        ...

    async def ask_leader(self, partition: Partition, replica: ReplicaId, stores: Iterable[str]) -> bool:
        """Whether a leader on one of these stores, just confirmed by a quorum, reports that the replica is no member.

        False if no leader reported that within an election timeout.
        """
        ...

    def clock_ahead(self) -> int:
        """Return the seconds by which the wall clock is ahead of most stores', negative if behind; 0 if close."""
        ...

    def received(self) -> tuple[int, float]:
        """Return the bytes of snapshots received since the process started, and the seconds spent receiving."""
        ...

    def reports(self) -> Mapping[Partition, GroupReport]:
        """Return the report of each replica."""
        ...
