"""Modelled raft groups: the explorer's replicas behind the agent's `Groups` interface, stepped by `tick`.

Logs, terms, joint configurations, snapshots and quorums are real; messages are exchanges that succeed or do nothing.
The model checks safety as it goes: two leaders of a term, a committed entry that changes, or the destruction of a
replica that its group counts on fail the test.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping

from evenkeel.protocol.group_configuration import Configuration
from evenkeel.protocol.leader_decision import GroupView
from evenkeel.protocol.records import ReplicaId, StoreSettings
from evenkeel.protocol.replica_decision import Start, leader_excludes
from evenkeel.versions import FIRST, SUPPORTED, VersionRange
from evenkeel_raft.agent.leadership_transfers import successors
from evenkeel_raft.shared.identity import Address
from evenkeel_raft.shared.raft_groups import GroupReport, MetastoreMark, Partition
from tests.explorer import raft
from tests.explorer.raft import Entry, Replica


class Network:
    """All stores' replicas and their connectivity."""

    def __init__(self) -> None:
        self.stores: dict[str, ModelGroups] = {}
        self.held: set[str] = set()
        """Stores whose new replicas receive no data."""
        self.cut: set[str] = set()
        """Stores that are partitioned from all others."""
        self.dropped: Callable[[str], bool] = lambda _: False
        """Whether a table has a tombstone, so that its replicas may be destroyed."""
        self._committed: dict[Partition, dict[int, Entry]] = {}
        self._terms: dict[tuple[Partition, int], ReplicaId] = {}
        self._shown: dict[tuple[str, Partition], object] = {}

    def replicas(self, partition: Partition) -> dict[ReplicaId, Replica]:
        """Return the replicas of running processes."""
        found = (store.disk.replicas.get(partition) for store in self.stores.values() if store.up)
        return {replica.id: replica for replica in found if replica is not None}

    def reach(self, origin: ReplicaId, target: ReplicaId, partition: Partition) -> Replica | None:
        if origin != target and {origin[0], target[0]} & self.cut:
            return None
        return self.replicas(partition).get(target)

    def leader(self, partition: Partition) -> Replica | None:
        """Return the leader of the highest term."""
        leading = [replica for replica in self.replicas(partition).values() if replica.leading]
        return max(leading, key=lambda replica: replica.term, default=None)

    def tick(self) -> None:
        """Replicate once from every leader, elect leaders where there are none, and notify agents of changes."""
        for partition in self._partitions():
            self._exchange(partition)
            self._relieve(partition)
            if self.leader(partition) is None:
                self._campaign(partition)
            self._check(partition)
        self._notify()

    def elect(self, candidate: ReplicaId, partition: Partition) -> bool:
        me = self.reach(candidate, candidate, partition)
        applied = me.applied() if me is not None else None
        if me is None or applied is None or candidate not in applied.voter_ids():
            return False
        reached = self._reached(me, applied.voter_ids(), partition)
        votes = raft.granted(me, reached)
        if not applied.is_quorum(votes):
            return False
        raft.crown(me, [other for other in reached if other.id in votes])
        return True

    def committed(self, partition: Partition) -> Configuration | None:
        """Return the newest configuration that any replica knows to be committed."""
        replicas = [
            store.disk.replicas[partition] for store in self.stores.values() if partition in store.disk.replicas
        ]
        newest = max((r for r in replicas if r.applied() is not None), key=lambda r: r.applied_index(), default=None)
        return None if newest is None else newest.applied()

    def _partitions(self) -> list[Partition]:
        return sorted({partition for store in self.stores.values() if store.up for partition in store.disk.replicas})

    def _exchange(self, partition: Partition) -> None:
        for me in list(self.replicas(partition).values()):
            applied, newest = me.applied(), me.newest()
            if not me.leading or applied is None or newest is None:
                continue
            reached = self._reached(me, applied.members() | newest.members(), partition)
            if not applied.is_quorum({me.id, *(other.id for other in reached)}):
                me.restart()
                continue
            for other in reached:
                if me.leading and other.id != me.id and not self._is_held(other):
                    raft.replicate(me, other)

    def _is_held(self, replica: Replica) -> bool:
        return replica.id[0] in self.held and replica.base_configuration is None

    def _campaign(self, partition: Partition) -> None:
        def order(replica: Replica) -> tuple[bool, ReplicaId]:
            return (self.stores[replica.id[0]].leadership_inhibited, replica.id)

        for replica in sorted(self.replicas(partition).values(), key=order):
            if self.elect(replica.id, partition):
                return

    def _relieve(self, partition: Partition) -> None:
        """Let an inhibited leader hand over to a voter that has caught up."""
        leader = self.leader(partition)
        store = None if leader is None else self.stores[leader.id[0]]
        view = store.leading(partition) if store is not None and store.leadership_inhibited else None
        able = (
            []
            if view is None
            else [peer for peer in successors(view) if not self.stores[peer.store].leadership_inhibited]
        )
        if able:
            self.elect(able[0].id, partition)

    def _reached(self, me: Replica, members: Iterable[ReplicaId], partition: Partition) -> list[Replica]:
        found = (self.reach(me.id, member, partition) for member in sorted(members))
        return [other for other in found if other is not None]

    def _check(self, partition: Partition) -> None:
        committed = self._committed.setdefault(partition, {})
        for replica in self.replicas(partition).values():
            for index, entry in enumerate(replica.log[: replica.commit - replica.base], replica.base + 1):
                assert committed.setdefault(index, entry) == entry, f"{replica.id} committed something else at {index}"
            if replica.leading:
                first = self._terms.setdefault((partition, replica.term), replica.id)
                assert first == replica.id, f"{first} and {replica.id} lead {partition} in term {replica.term}"

    def _notify(self) -> None:
        for store in self.stores.values():
            if store.up:
                for partition in list(store.disk.replicas):
                    shown = store.leading(partition)
                    if self._shown.get((store.name, partition)) != shown:
                        self._shown[store.name, partition] = shown
                        store.on_change(partition)


class Disk:
    """The durable state of a volume."""

    def __init__(self, volume: str) -> None:
        self.volume = volume
        self.replicas: dict[Partition, Replica] = {}
        self.held: dict[Partition, int] = {}
        self.mark: MetastoreMark | None = None
        self.version = FIRST


class ModelGroups:
    """One store's process; implements `Groups`."""

    def __init__(self, network: Network, name: str, disk: Disk) -> None:
        self.network = network
        self.name = name
        self.disk = disk
        self.up = True
        self.on_change: Callable[[Partition], None] = lambda _: None
        self.on_state_machine: Callable[[], None] = lambda: None
        self.machine: VersionRange | None = SUPPORTED
        self.leadership_inhibited = False
        self.peers: dict[str, Address] = {}
        self.limits: dict[str, float] = {}
        self.throttles: StoreSettings | None = None
        self.awake: set[Partition] = set()
        self.marks: list[MetastoreMark] = []
        self.destroyed: list[tuple[Partition, ReplicaId]] = []
        self.asked: list[tuple[Partition, ReplicaId, tuple[str, ...]]] = []
        self.refuse_proposals = False
        self.ahead = 0
        self.problems: dict[Partition, str] = {}
        self.proposed: dict[Partition, int] = {}
        self.sizes: dict[Partition, int] = {}
        self.copied = (0, 0.0)
        self.starting = asyncio.Event()
        """While cleared, starts do not finish."""
        self.starting.set()
        self.failing: Exception | None = None
        """The error that starts and destructions raise."""
        for replica in disk.replicas.values():
            replica.restart()
        network.stores[name] = self

    def kill(self) -> None:
        self.up = False
        for replica in self.disk.replicas.values():
            replica.restart()

    def running(self) -> Mapping[Partition, ReplicaId]:
        return {partition: replica.id for partition, replica in self.disk.replicas.items()}

    def newest_held(self, partition: Partition) -> int:
        return self.disk.held.get(partition, 0)

    def metastore_mark(self) -> MetastoreMark | None:
        return self.disk.mark

    async def save_metastore_mark(self, mark: MetastoreMark) -> None:
        self.disk.mark = mark
        self.marks.append(mark)

    @property
    def version(self) -> int:
        return self.disk.version

    def set_version(self, version: int) -> None:
        self.disk.version = version

    def machine_supports(self) -> VersionRange | None:
        return self.machine

    def set_peers(self, peers: Mapping[str, Address]) -> None:
        self.peers = dict(peers)

    def limit_copies(self, limits: Mapping[str, float]) -> None:
        self.limits = dict(limits)

    def throttle(self, settings: StoreSettings | None) -> None:
        self.throttles = settings

    async def start(self, partition: Partition, start: Start) -> None:
        await self.starting.wait()
        if self.failing is not None:
            raise self.failing
        assert partition not in self.disk.replicas, "one replica of a group per store"
        assert start.peer.volume == self.disk.volume
        assert start.peer.replica > self.newest_held(partition), "what was held is never started again"
        self.disk.replicas[partition] = Replica(start.peer.id, start.configuration)
        self.disk.held[partition] = start.peer.replica
        self.on_change(partition)

    async def destroy(self, partition: Partition, replica: ReplicaId) -> None:
        if self.failing is not None:
            raise self.failing
        assert self.running()[partition] == replica
        configuration = self.network.committed(partition)
        counted_on = configuration is not None and replica in configuration.members()
        assert self.network.dropped(partition.table) or not counted_on, f"{replica} is still a member"
        del self.disk.replicas[partition]
        self.destroyed.append((partition, replica))
        self.on_change(partition)

    def leading(self, partition: Partition) -> GroupView | None:
        me = self.disk.replicas.get(partition)
        if me is None or not me.leading or not self.up:
            return None
        applied, newest = me.applied(), me.newest()
        assert applied is not None
        assert newest is not None
        knowing = {id_ for id_, commit in me.known.items() if commit >= me.applied_index()} | {me.id}
        return GroupView(
            me=me.id,
            term=me.term,
            applied=applied,
            newest=newest,
            committed_in_term=me.term_at(me.commit) == me.term,
            caught_up=frozenset(id_ for id_, match in me.match.items() if match >= me.commit) | {me.id},
            answering=frozenset(self._answering(me, applied.members() | newest.members(), partition)),
            commit_known=applied.is_quorum(knowing),
        )

    def led_elsewhere(self, partition: Partition) -> bool:
        me, leader = self.disk.replicas.get(partition), self.network.leader(partition)
        return me is not None and leader is not None and leader.id != me.id

    def leading_term(self, partition: Partition) -> int:
        me = self.disk.replicas.get(partition)
        return me.term if me is not None and me.leading and self.up else 0

    def _answering(self, me: Replica, members: Iterable[ReplicaId], partition: Partition) -> Iterator[ReplicaId]:
        for member in members:
            other = self.network.reach(me.id, member, partition)
            if other is not None and other.term <= me.term:
                yield other.id

    def propose(self, partition: Partition, configuration: Configuration) -> bool:
        me = self.disk.replicas[partition]
        if not me.leading or self.refuse_proposals or me.newest() != me.applied():
            return False
        raft.append(me, Entry(me.term, configuration))
        return True

    def transfer(self, partition: Partition, to: ReplicaId) -> bool:
        if self.disk.replicas[partition].id[0] in self.network.cut:
            return False
        return self.network.elect(to, partition)

    def set_leadership_inhibited(self, leadership_inhibited: bool) -> None:
        self.leadership_inhibited = leadership_inhibited

    def keep_awake(self, partition: Partition, awake: bool) -> None:
        (self.awake.add if awake else self.awake.discard)(partition)

    async def ask_leader(self, partition: Partition, replica: ReplicaId, stores: Iterable[str]) -> bool:
        asked = tuple(stores)
        self.asked.append((partition, replica, asked))
        for leader in self.network.replicas(partition).values():
            applied, newest = leader.applied(), leader.newest()
            if not leader.leading or leader.id[0] not in asked or leader.id[0] in self.network.cut:
                continue
            assert applied is not None
            assert newest is not None
            answering = self._answering(leader, applied.members() | newest.members(), partition)
            if applied.is_quorum({*answering, leader.id}):
                sure = leader.term_at(leader.commit) == leader.term
                return leader_excludes(replica, applied=applied, newest=newest, committed_in_term=sure)
        return False

    def clock_ahead(self) -> int:
        return self.ahead

    def received(self) -> tuple[int, float]:
        return self.copied

    def reports(self) -> Mapping[Partition, GroupReport]:
        return {partition: self._report(partition, replica) for partition, replica in self.disk.replicas.items()}

    def _report(self, partition: Partition, replica: Replica) -> GroupReport:
        view = self.leading(partition)
        staged = () if view is None else view.applied.staged
        return GroupReport(
            leading=replica.leading,
            term=replica.term,
            log_bytes=1000 * replica.last,
            applied=replica.commit,
            proposed_bytes=self.proposed.get(partition, 0),
            filling={peer.store: 0.0 for peer in staged if view is not None and peer.id not in view.caught_up},
            problem=self.problems.get(partition, ""),
            bytes=self.sizes.get(partition),
            alone=(applied := replica.applied()) is not None and applied.voter_ids() == {replica.id},
        )
