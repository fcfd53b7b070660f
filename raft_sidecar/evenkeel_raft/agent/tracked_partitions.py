"""The partitions that concern this store, with their keys as last known and the state of their agents.

The watch shows the keys of all partitions of the StoreCluster. Partitions that do not name this store and have no
replica here are skipped by a search for the store's name in the raw bytes. When an event first names the store, the
partition's other keys are unknown: it is tracked, but not `complete` until it has been read.

One watch delivers stable, pending, planned and lock, so a partition's view is always of one revision: that of the
watch, or that of a read that was ahead of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from evenkeel.errors import MalformedRecordError
from evenkeel.metastore.metastore_api import KeyValue, Snapshot, WatchBatch
from evenkeel.protocol.keys import Keys, PartitionKeys
from evenkeel.protocol.partition_view import PartitionView, read_partition
from evenkeel.protocol.records import encode
from evenkeel_raft.agent.agent_context import AgentContext
from evenkeel_raft.agent.key_mirror import KeyMirror
from evenkeel_raft.agent.partition_agent import PartitionAgent
from evenkeel_raft.agent.table_states import TableStates
from evenkeel_raft.shared.raft_groups import Partition

__all__ = ["TrackedPartition", "TrackedPartitions"]

_KINDS = frozenset(("stable", "pending", "planned", "pending.lock"))


class TrackedPartition:
    """One partition as this store knows it."""

    __slots__ = (
        *("_known", "_view", "agent", "awake", "keys", "leader", "leader_read"),
        *("partition", "plan", "problem", "read_at", "reported", "target", "unled_since"),
    )

    def __init__(self, partition: Partition, keys: PartitionKeys, agent: PartitionAgent) -> None:
        self.partition = partition
        self.keys = keys
        self.agent = agent
        self.read_at = 0
        """The revision of the last read or listing of all its keys; 0 while some are unknown."""
        self.leader: KeyValue | None = None
        """`leaders/<t>/<p>` as last read."""
        self.reported = 0
        """The term for which the leader record is known to name this store."""
        self.unled_since: float | None = None
        """Since when no replica is known to lead and serve; None while one is."""
        self.leader_read = False
        """Whether `leaders/<t>/<p>` was read since then."""
        self.awake = False
        """Whether raft was asked to keep the group awake."""
        self.problem = ""
        """Why its keys cannot be decoded; empty if they can."""
        self.plan = 0
        """The number of the plan that this store's lock carries out; used in log lines only."""
        self.target = (0, 0)
        """The revisions of pending and planned that the leader last acted on."""
        self._known = KeyMirror()
        self._view: PartitionView | None = None

    @property
    def complete(self) -> bool:
        """Whether all its keys are known."""
        return self.read_at > 0

    def update(self, key: str, kv: KeyValue | None, *, at: int) -> None:
        """Record one key as of a revision."""
        if self._known.update(key, kv, at=at):
            self._view = None

    def read(self, found: Mapping[str, KeyValue], *, at: int) -> None:
        """Record all keys as of a revision."""
        for key in (self.keys.stable, self.keys.pending, self.keys.planned, self.keys.lock):
            self.update(key, found.get(key), at=at)
        self.read_at = max(self.read_at, at)

    def refresh(self, tables: TableStates, *, revision: int) -> None:
        """Show the known keys to its agent, given that the watch has shown `revision`;

        an empty view if they are malformed.
        """
        try:
            if self._view is None:
                self._view = read_partition(self.keys, {kv.key: kv for kv in self._known})
            view, table, self.problem = self._view, tables.ready(self.partition.table), ""
        except MalformedRecordError as error:
            view, table, self.problem = PartitionView(), None, str(error)
        self.agent.see(view, table, revision=max(self.read_at, revision))

    def names(self, store: str) -> bool:
        """Whether the agent's last view lists a replica on the store."""
        return self.agent.view is not None and any(peer.store == store for peer in self.agent.view.peers())


class TrackedPartitions:
    """All tracked partitions, and the revision that the watch has reached."""

    def __init__(self, context: AgentContext) -> None:
        self._context = context
        self._keys: Keys = context.keys
        self._prefix = context.keys.assignments()
        self._named = encode(context.me.store)
        self._partitions: dict[Partition, TrackedPartition] = {}
        self._awaited: list[tuple[int, float]] = []
        self.revision = 0
        """All events up to this revision have been applied."""

    def __iter__(self) -> Iterator[TrackedPartition]:
        return iter(self._partitions.values())

    def __len__(self) -> int:
        return len(self._partitions)

    def get(self, partition: Partition) -> TrackedPartition | None:
        """Return the partition if it is tracked."""
        return self._partitions.get(partition)

    def track(self, partition: Partition) -> TrackedPartition:
        """Return the partition; if it was not tracked, it must be read first."""
        tracked = self._partitions.get(partition)
        if tracked is None:
            keys, me = self._keys.partition(*partition), self._context.me
            agent = PartitionAgent(keys, self._keys.table(partition.table), store=me.store, volume=me.volume)
            tracked = self._partitions[partition] = TrackedPartition(partition, keys, agent)
        return tracked

    def untrack(self, partition: Partition) -> None:
        """Stop tracking a partition that no longer concerns this store."""
        self._partitions.pop(partition, None)

    def untrack_table(self, table: str) -> None:
        """Stop tracking all partitions of the table."""
        for partition in [partition for partition in self._partitions if partition.table == table]:
            del self._partitions[partition]

    def load(self, snapshot: Snapshot, *, running: Iterable[Partition]) -> None:
        """Apply a listing of all partitions' keys; track those that name this store or run here."""
        self.revision = snapshot.revision
        mine = {*running, *self._partitions}
        found: dict[Partition, dict[str, KeyValue]] = {}
        for kv in snapshot.kvs:
            partition = self._parse(kv.key)
            if partition is not None:
                found.setdefault(partition, {})[kv.key] = kv
                if self._named in kv.value:
                    mine.add(partition)
        for partition in mine:
            self.track(partition).read(found.get(partition, {}), at=snapshot.revision)

    def apply(self, batch: WatchBatch) -> Iterator[Partition]:
        """Apply events; yield the partitions to reconcile."""
        counters = self._context.counters
        for event in batch.events:
            counters.events += 1
            partition = self._parse(event.key)
            if partition is None:
                continue
            tracked = self._partitions.get(partition)
            if tracked is None:
                if event.kv is None or self._named not in event.kv.value:
                    counters.skipped += 1
                    continue
                tracked = self.track(partition)
            tracked.update(event.key, event.kv, at=event.mod_revision)
            yield partition
        self.revision = batch.revision
        self._measure_lag()

    def expect(self, revision: int) -> None:
        """Measure how long the watch takes to show this revision, which a transaction of this store created."""
        if revision > self.revision:
            self._awaited.append((revision, self._context.clock.now()))

    def _measure_lag(self) -> None:
        counters, now = self._context.counters, self._context.clock.now()
        for _, since in (entry for entry in self._awaited if entry[0] <= self.revision):
            counters.watch_lag = now - since
            counters.worst_watch_lag = max(counters.worst_watch_lag, counters.watch_lag)
        self._awaited = [entry for entry in self._awaited if entry[0] > self.revision]

    def _parse(self, key: str) -> Partition | None:
        kind, _, rest = key.removeprefix(self._prefix).partition("/")
        table, _, number = rest.rpartition("/")
        return Partition(table, int(number)) if kind in _KINDS and table and number.isdecimal() else None
