"""Modelled sidecars on a real metastore: the protocol's decisions, with raft groups that only simulate copying.

Each partition's leader acts through `evenkeel.protocol.leader_decision.next_action` and real transactions. Only raft
itself is modelled: a proposed configuration takes effect immediately, every member answers, and a new replica has
caught up after `fill` seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable

import msgspec

from evenkeel.errors import UnreachableError
from evenkeel.metastore.metastore_api import Compare, KeyValue, Metastore, Put, Txn
from evenkeel.protocol.group_configuration import Configuration
from evenkeel.protocol.keys import Keys, PartitionKeys
from evenkeel.protocol.leader_decision import Action, GroupView, Propose, Transfer, Write, next_action
from evenkeel.protocol.partition_view import PartitionView, read_partition
from evenkeel.protocol.records import Leader, ReplicaId, TableRecord, TableState, decode, encode, voters

__all__ = ["Group", "ModelledSidecars"]


class Group(msgspec.Struct, kw_only=True):
    """A modelled raft group."""

    configuration: Configuration
    leader: ReplicaId
    term: int = 1
    lock_mod: int = 0
    full: set[ReplicaId]
    """Replicas that are up to date."""
    filling: set[ReplicaId] = set()
    stage: str = ""
    """The last action of its leader, for debugging."""


class ModelledSidecars:
    """All sidecars of a table; `run` until cancelled."""

    def __init__(
        self,
        metastore: Metastore,
        *,
        keys: Keys,
        table: str,
        fill: float,
        concurrent: int = 4,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._metastore = metastore
        self._keys = keys
        self._table = table
        self._fill_seconds = fill
        self._copies = asyncio.Semaphore(concurrent)
        self._on_change = on_change
        self._found: dict[str, KeyValue] = {}
        self._wakes: dict[int, asyncio.Event] = {}
        self._seen = 0
        self._news = asyncio.Condition()
        self.groups: dict[int, Group] = {}
        self.copied = 0
        """Number of replicas that were filled."""
        self.wasted = 0
        """Number of replicas that were filled, or started, for an abandoned target."""
        self.actions: Counter[str] = Counter()

    async def run(self) -> None:
        """Watch the keys and act on them until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            snapshot = await self._metastore.range(self._keys.root)
            for kv in snapshot.kvs:
                self._found[kv.key] = kv
            self._meet_partitions(tasks)
            async for batch in self._metastore.watch(self._keys.root, after=snapshot):
                for event in batch.events:
                    self._take(event.key, event.kv)
                async with self._news:
                    self._seen = batch.revision
                    self._news.notify_all()
                self._meet_partitions(tasks)
                self._on_change()

    async def _see(self, revision: int) -> None:
        """Wait for a view at least as new as the last write or rejection."""
        async with self._news:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait_for(lambda: self._seen >= revision), timeout=1.0)

    def view(self, partition: int) -> PartitionView:
        """Return the partition's keys as last watched."""
        return read_partition(self._keys.partition(self._table, partition), self._found)

    def record(self) -> tuple[TableRecord, int] | None:
        """Return the table's record as last watched."""
        kv = self._found.get(self._keys.table(self._table))
        return None if kv is None else (decode(TableRecord, kv.value, key=kv.key), kv.mod_revision)

    def _take(self, key: str, kv: KeyValue | None) -> None:
        if kv is None:
            self._found.pop(key, None)
        else:
            self._found[key] = kv
        if key == self._keys.table(self._table):
            for wake in self._wakes.values():
                wake.set()
        kind, _, partition = key.rpartition("/")
        if kind.endswith(f"/{self._table}") and partition.isdigit() and int(partition) in self._wakes:
            self._wakes[int(partition)].set()

    def _meet_partitions(self, tasks: asyncio.TaskGroup) -> None:
        known = self.record()
        if known is None or known[0].state is not TableState.READY:
            return
        for partition in range(known[0].partitions):
            if partition not in self.groups:
                self.groups[partition] = self._genesis(partition)
                self._wakes[partition] = asyncio.Event()
                tasks.create_task(self._lead(partition, tasks))

    def _genesis(self, partition: int) -> Group:
        stable = self.view(partition).stable
        assert stable is not None
        preferred = sorted(voters(stable.peers))[partition % len(voters(stable.peers))]
        return Group(
            configuration=Configuration(stable.peers), leader=preferred.id, full={peer.id for peer in stable.peers}
        )

    async def _lead(self, partition: int, tasks: asyncio.TaskGroup) -> None:
        """Run the leader of one partition."""
        group, wake = self.groups[partition], self._wakes[partition]
        keys = self._keys.partition(self._table, partition)
        await self._report_leader(partition, group)
        while True:
            wake.clear()
            self._fill(group, wake, tasks)
            action = self._next(partition, group, keys)
            if action is None:
                await wake.wait()
                continue
            with contextlib.suppress(UnreachableError):
                await self._act(partition, group, action)
            self._on_change()

    def _next(self, partition: int, group: Group, keys: PartitionKeys) -> Action | None:
        known = self.record()
        if known is None or known[0].state is not TableState.READY:
            return None
        record, mod = known
        members = group.configuration.members()
        view = GroupView(
            me=group.leader,
            term=group.term,
            applied=group.configuration,
            newest=group.configuration,
            committed_in_term=True,
            caught_up=frozenset(group.full & members),
            answering=members,
            commit_known=True,
            lock_mod=group.lock_mod,
        )
        table = Compare(self._keys.table(self._table), "mod", "=", mod)
        return next_action(self.view(partition), view, keys=keys, mode=record.retarget, table=table)

    async def _act(self, partition: int, group: Group, action: Action) -> None:
        match action:
            case Write(what, txn):
                group.lock_mod = 0
                result = await self._metastore.txn(txn)
                if what == "lock" and result.succeeded:
                    group.lock_mod = result.revision
                group.stage = "" if what == "switch" else what
                self.actions[what] += result.succeeded
                await self._see(result.revision if result.succeeded else self._seen + 1)
            case Propose(what, configuration):
                self._replace(group, configuration)
                group.stage = "catching up" if what == "stage" and configuration.staged else what
                self.actions[what] += 1
            case Transfer(to):
                group.leader, group.term = to, group.term + 1
                self.actions["transfer"] += 1
                await self._report_leader(partition, group)

    def _replace(self, group: Group, configuration: Configuration) -> None:
        dropped = group.configuration.members() - configuration.members()
        staged = {peer.id for peer in group.configuration.staged}
        self.wasted += len(dropped & staged)
        group.full -= dropped
        group.configuration = configuration

    def _fill(self, group: Group, wake: asyncio.Event, tasks: asyncio.TaskGroup) -> None:
        """Start to copy to staged learners that do not receive a copy yet."""
        for peer in group.configuration.staged:
            if peer.id not in group.full and peer.id not in group.filling:
                group.filling.add(peer.id)
                tasks.create_task(self._copy(group, peer.id, wake))

    async def _copy(self, group: Group, to: ReplicaId, wake: asyncio.Event) -> None:
        async with self._copies:
            await asyncio.sleep(self._fill_seconds)
        group.filling.discard(to)
        if to in group.configuration.members():
            group.full.add(to)
            self.copied += 1
        wake.set()

    async def _report_leader(self, partition: int, group: Group) -> None:
        leader = Leader(store=group.leader[0], term=group.term)
        key = self._keys.leader(self._table, partition)
        await self._metastore.txn(Txn(success=(Put(key, encode(leader)),)))
