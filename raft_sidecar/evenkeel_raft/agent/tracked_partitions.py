"""The partitions that concern this store, each with its keys as last known and what its agent remembers.

The watch shows the keys of all partitions of the StoreCluster. Those in which this store is not named and has no
replica are skipped by looking for its name in the bytes, and nothing is kept of them. When a change first names the
store, the partition's other keys are not known: it gets a seat that is not `whole` until it has been read.

Stable, pending, planned and lock come by one watch, so a seat's view is always of one revision: that of the watch, or
that of a read which was ahead of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from evenkeel.errors import MalformedRecordError
from evenkeel.metastore.metastore_api import KeyValue, Snapshot, WatchBatch
from evenkeel.protocol.keys import Keys, PartitionKeys
from evenkeel.protocol.partition_view import PartitionView, read_partition
from evenkeel.protocol.records import encode
from evenkeel_raft.agent.agent_context import Context
from evenkeel_raft.agent.key_mirror import Mirror
from evenkeel_raft.agent.partition_agent import PartitionAgent
from evenkeel_raft.agent.table_states import Tables
from evenkeel_raft.shared.raft_groups import Partition

__all__ = ["Seat", "Seats"]

_KINDS = frozenset(("stable", "pending", "planned", "pending.lock"))


class Seat:
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
        """The revision of the last read or listing of all its keys; 0 while some are not known."""
        self.leader: KeyValue | None = None
        """`leaders/<t>/<p>` as last read."""
        self.reported = 0
        """The term in which this store is known to stand there as leader."""
        self.unled_since: float | None = None
        """Since when no replica is known to lead and serve; None while one is."""
        self.leader_read = False
        """Whether `leaders/<t>/<p>` was read since then."""
        self.awake = False
        """Whether raft was asked to keep the group awake."""
        self.problem = ""
        """Why its keys cannot be understood."""
        self.plan = 0
        """The number of the plan whose change this store leads, from its lock on; for people who read logs."""
        self.target = (0, 0)
        """The revisions of pending and planned that were last acted on."""
        self._known = Mirror()
        self._view: PartitionView | None = None

    @property
    def whole(self) -> bool:
        """Whether all its keys are known."""
        return self.read_at > 0

    def learn(self, key: str, kv: KeyValue | None, *, at: int) -> None:
        """One key as of a revision."""
        if self._known.learn(key, kv, at=at):
            self._view = None

    def read(self, found: Mapping[str, KeyValue], *, at: int) -> None:
        """All keys as of a revision."""
        for key in (self.keys.stable, self.keys.pending, self.keys.planned, self.keys.lock):
            self.learn(key, found.get(key), at=at)
        self.read_at = max(self.read_at, at)

    def look(self, tables: Tables, *, revision: int) -> None:
        """Let its agent see what is known, now that the watch has shown `revision`; nothing where it makes no sense."""
        try:
            if self._view is None:
                self._view = read_partition(self.keys, {kv.key: kv for kv in self._known})
            view, table, self.problem = self._view, tables.ready(self.partition.table), ""
        except MalformedRecordError as error:
            view, table, self.problem = PartitionView(), None, str(error)
        self.agent.see(view, table, revision=max(self.read_at, revision))

    def names(self, store: str) -> bool:
        """Whether what its agent last saw lists a replica on the store."""
        return self.agent.view is not None and any(peer.store == store for peer in self.agent.view.peers())


class Seats:
    """All seats, and how far the watch of their keys has come."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._keys: Keys = context.keys
        self._prefix = context.keys.assignments()
        self._named = encode(context.me.store)
        self._seats: dict[Partition, Seat] = {}
        self._awaited: list[tuple[int, float]] = []
        self.revision = 0
        """Every change up to here has been shown."""

    def __iter__(self) -> Iterator[Seat]:
        return iter(self._seats.values())

    def __len__(self) -> int:
        return len(self._seats)

    def get(self, partition: Partition) -> Seat | None:
        """The partition's seat, if it has one."""
        return self._seats.get(partition)

    def take_seat(self, partition: Partition) -> Seat:
        """The partition's seat; a new one has yet to be read."""
        seat = self._seats.get(partition)
        if seat is None:
            keys, me = self._keys.partition(*partition), self._context.me
            agent = PartitionAgent(keys, self._keys.table(partition.table), store=me.store, volume=me.volume)
            seat = self._seats[partition] = Seat(partition, keys, agent)
        return seat

    def leave(self, partition: Partition) -> None:
        """The partition is no more of this store's business."""
        self._seats.pop(partition, None)

    def leave_table(self, table: str) -> None:
        """No partition of the table is."""
        for partition in [partition for partition in self._seats if partition.table == table]:
            del self._seats[partition]

    def begin(self, snapshot: Snapshot, *, running: Iterable[Partition]) -> None:
        """All keys of all partitions at one revision; seats for those that name this store or run here."""
        self.revision = snapshot.revision
        mine = {*running, *self._seats}
        found: dict[Partition, dict[str, KeyValue]] = {}
        for kv in snapshot.kvs:
            partition = self._parse(kv.key)
            if partition is not None:
                found.setdefault(partition, {})[kv.key] = kv
                if self._named in kv.value:
                    mine.add(partition)
        for partition in mine:
            self.take_seat(partition).read(found.get(partition, {}), at=snapshot.revision)

    def take(self, batch: WatchBatch) -> Iterator[Partition]:
        """Some changes; yields the partitions to look at."""
        counters = self._context.counters
        for event in batch.events:
            counters.events += 1
            partition = self._parse(event.key)
            if partition is None:
                continue
            seat = self._seats.get(partition)
            if seat is None:
                if event.kv is None or self._named not in event.kv.value:
                    counters.skipped += 1
                    continue
                seat = self.take_seat(partition)
            seat.learn(event.key, event.kv, at=event.mod_revision)
            yield partition
        self.revision = batch.revision
        self._measure_lag()

    def expect(self, revision: int) -> None:
        """A transaction of this store made this revision: see how long the watch takes to show it."""
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
