"""The replicas that a volume holds: recovered from the log, created, found and destroyed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Final

import msgspec

from evenkeel.errors import DisconnectedError, InvalidInputError
from evenkeel.protocol.keys import group_number
from evenkeel.protocol.records import ReplicaId
from evenkeel.protocol.replica_decision import Start
from evenkeel_raft.core.errors import InvariantError
from evenkeel_raft.core.raft_types import EMPTY_META, HardState, genesis
from evenkeel_raft.core.rawnode import RawNode
from evenkeel_raft.errors import CorruptLogError, WrongVolumeError
from evenkeel_raft.host.host_context import HostContext, HostEnvironment
from evenkeel_raft.host.host_maintenance import HostMaintenance
from evenkeel_raft.host.raft_replica import Replica
from evenkeel_raft.host.received_snapshots import ReceivedSnapshots
from evenkeel_raft.host.replica_label import ReplicaLabel, decode_label, encode_label
from evenkeel_raft.log.log_rebuild import Recovered, RecoveredGroup
from evenkeel_raft.log.log_records import Append, Created, Destroyed
from evenkeel_raft.shared.raft_configurations import conf_of, member
from evenkeel_raft.shared.raft_groups import Partition

__all__ = ["ReplicaSet"]

_EMPTY: Final = RecoveredGroup(0, 0, b"", EMPTY_META, HardState(), [])


class ReplicaSet:
    """All replicas of one volume, by group number and by partition."""

    def __init__(
        self,
        by_group: dict[int, Replica],
        *,
        environment: HostEnvironment,
        context: HostContext,
        maintenance: HostMaintenance,
        recovered: Recovered,
        on_change: Callable[[Replica], None],
    ) -> None:
        """`by_group` is empty; the other parts of the host share it."""
        self.by_group = by_group
        self._running: dict[Partition, ReplicaId] = {}
        self._retired = dict(recovered.retired)
        self._environment = environment
        self._context = context
        self._maintenance = maintenance
        self._on_change = on_change
        for group, found in recovered.groups.items():
            self._recover(group, found)

    # Lookup

    @property
    def running(self) -> Mapping[Partition, ReplicaId]:
        """The id of each replica, by partition."""
        return self._running

    def get(self, partition: Partition) -> Replica | None:
        """Return the replica of a partition, if there is one."""
        return self.by_group[group_number(*partition)] if partition in self._running else None

    def holds(self, group: int, number: int) -> bool:
        """Whether the volume holds the replica with this member number."""
        replica = self.by_group.get(group)
        return replica is not None and member(replica.id) == number

    def newest_held(self, partition: Partition) -> int:
        """Return the highest replica id that this volume ever held of a group; 0 if none."""
        group = group_number(*partition)
        replica = self.by_group.get(group)
        return replica.id[1] if replica is not None else self._retired.get(group, 0)

    def received_snapshots_of(self, group: int, number: int, index: int) -> ReceivedSnapshots | None:
        """Return where a snapshot from before the restart belongs; only one at the start of the log is useful."""
        useful = self.holds(group, number) and index == self.by_group[group].node.offset
        return self.by_group[group].applier.received_snapshots if useful else None

    # Start and end

    def start_all(self) -> None:
        """Start the recovered replicas."""
        for replica in self.by_group.values():
            self._start(replica)

    async def create(self, partition: Partition, start: Start) -> Replica:
        """Create a replica durably and start it."""
        group, peer = group_number(*partition), start.peer
        if group in self.by_group:
            other = self.by_group[group].partition
            raise InvalidInputError(
                f"cannot start {partition}: {other} has the same group number {group}; recreate the table"
            )
        first = None if start.configuration is None else conf_of(start.configuration.peers)
        label = ReplicaLabel(*partition, peer.store, first, self._environment.identity.cluster)
        await self._context.writer.write(Created(group, peer.replica, 0, encode_label(label)))
        replica = self._add(group, label, msgspec.structs.replace(_EMPTY, replica=peer.replica))
        self._start(replica)
        return replica

    async def destroy(self, partition: Partition, id_: ReplicaId) -> None:
        """Delete a replica: first the state machine's data, because only the log records that there is any."""
        replica, context = self.get(partition), self._context
        if replica is None or replica.id != id_:
            return
        if not context.machine.connected:
            raise DisconnectedError(
                f"cannot delete the data of {partition}: the state machine is not connected; retried when it is"
            )
        replica.stop()
        await context.machine.destroy(replica.group, id_[1])
        await context.writer.write(Destroyed(replica.group, id_[1]))
        self._maintenance.untrack(replica)
        del self._running[partition], self.by_group[replica.group]
        self._retired[replica.group] = id_[1]
        replica.applier.received_snapshots.drop()
        await context.peers.cancel_snapshot(replica.group, member(id_))

    def _start(self, replica: Replica) -> None:
        if replica.genesis_record is not None:
            self._context.writer.submit(replica.genesis_record)
            replica.genesis_record = None
        self._maintenance.track(replica)
        self._context.ready_queue.enqueue(replica)
        if self._context.machine.connected:
            replica.applier.open()

    # Recovery

    def _recover(self, group: int, found: RecoveredGroup) -> None:
        label, me = decode_label(found.label), self._environment.identity
        what = f"{self._environment.directory}: the log holds a replica of {label.table}/{label.partition}"
        advice = "mount the volume of this store, or start with an empty directory"
        if label.store != me.store:
            raise WrongVolumeError(
                f"{what} that belongs to store {label.store}, but this is store {me.store}; {advice}"
            )
        if label.cluster not in ("", me.cluster):
            raise WrongVolumeError(
                f"{what} that belongs to cluster {label.cluster}, but this store belongs to {me.cluster}; {advice}"
            )
        try:
            self._add(group, label, found)
        except (InvariantError, ValueError) as error:
            raise CorruptLogError(
                f"{what} in an impossible state: {error}; replace this store's volume, so that its replicas are copied "
                "from other stores",
                file="log",
                offset=0,
            ) from error

    def _add(self, group: int, label: ReplicaLabel, found: RecoveredGroup) -> Replica:
        partition, id_ = Partition(label.table, label.partition), (label.store, found.replica)
        meta = found.meta
        if label.genesis is not None and meta == EMPTY_META:
            meta = genesis(label.genesis)
        node = RawNode(
            group=group,
            replica=member(id_),
            generation=found.generation,
            rng=Random(self._context.rng.getrandbits(64)),
            settings=self._context.settings.raft,
            ticks=self._maintenance.ticks,
            meta=meta,
            hard_state=found.hard_state,
            entries=found.entries,
            applied=None,
        )
        replica = Replica(
            partition,
            id_,
            group=group,
            generation=found.generation,
            node=node,
            context=self._context,
            on_change=self._on_change,
        )
        self.by_group[group] = replica
        self._running[partition] = id_
        if meta is not found.meta:
            replica.genesis_record = Append(group, found.replica, found.generation, meta, [], None)
        return replica
