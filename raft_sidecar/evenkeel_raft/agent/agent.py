"""The agent of one store: it runs the sidecar half of the rebalance protocol.

    session    check that the metastore is the one this volume follows, then list and watch it; restart on failure
    reconcile  for each partition with an event: start, delete or lead its replica
    report     publish the store's registration, its leaderships and its load

Reconciliation is level-triggered. An event from the watch, from raft or from a finished transaction only names a
partition to reconcile, and a slow sweep reconciles all of them. No in-memory state is needed for correctness. While
the metastore is unavailable, replicas keep running and the agent only retries to connect.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Mapping

from evenkeel.errors import ClusterMismatchError, MetastoreError, UnsupportedVersionError
from evenkeel.metastore.metastore_api import KeyValue, Metastore
from evenkeel.protocol.keys import Keys
from evenkeel.runtime.backoff import Backoff, Rng
from evenkeel.runtime.clock import Clock, SystemClock
from evenkeel.runtime.work_queue import WorkQueue
from evenkeel.versions import Feature
from evenkeel_raft.agent.agent_context import AgentContext, StoreIdentity
from evenkeel_raft.agent.agent_counters import Counters
from evenkeel_raft.agent.agent_settings import AgentSettings, Tuning
from evenkeel_raft.agent.agent_status import AgentState, AgentStatus
from evenkeel_raft.agent.cluster_version_watch import ClusterVersion
from evenkeel_raft.agent.leader_driver import LeaderDriver
from evenkeel_raft.agent.leader_records import LeaderRecords
from evenkeel_raft.agent.leadership_inhibition import LeadershipInhibition
from evenkeel_raft.agent.leadership_transfers import LeadershipTransfers
from evenkeel_raft.agent.metastore_guard import MetastoreGuard
from evenkeel_raft.agent.metastore_watch import MetastoreWatch
from evenkeel_raft.agent.ordered_transfers import OrderedTransfers
from evenkeel_raft.agent.partition_jobs import PartitionJobs
from evenkeel_raft.agent.partition_reader import PartitionReader, ReadRequest
from evenkeel_raft.agent.partition_retries import PartitionRetries
from evenkeel_raft.agent.peer_registry import PeerRegistry
from evenkeel_raft.agent.replica_lifecycle import ReplicaLifecycle
from evenkeel_raft.agent.store_registration import StoreRegistration
from evenkeel_raft.agent.store_report import StoreReporter
from evenkeel_raft.agent.table_drops import TableDrops
from evenkeel_raft.agent.table_states import TableStates
from evenkeel_raft.agent.tracked_partitions import TrackedPartitions
from evenkeel_raft.agent.write_batcher import WriteBatcher
from evenkeel_raft.shared.raft_groups import GroupReport, Groups, Partition

__all__ = ["Agent"]

log = logging.getLogger(__name__)

STOPPING = "this store is stopping"
_LONGEST_PAUSE = 5.0
_RECONCILES_PER_TURN = 100
"""Partitions reconciled before other tasks of the event loop get a turn."""


class _StoppedError(Exception):
    """Ends all tasks of the agent."""


class Agent:
    """Runs one store's half of the protocol: `run` returns when it is cancelled or `stop` is done."""

    def __init__(
        self,
        metastore: Metastore,
        *,
        keys: Keys,
        groups: Groups,
        me: StoreIdentity,
        clock: Clock | None = None,
        rng: Rng | None = None,
        settings: AgentSettings | None = None,
    ) -> None:
        clock, rng, settings = clock or SystemClock(), rng or random.Random(), settings or AgentSettings()
        queue, counters, version = WorkQueue[Partition](clock), Counters(), ClusterVersion(keys, groups)
        tuning = self.tuning = Tuning(settings)
        context = self._context = AgentContext(
            metastore, keys, groups, me, clock, rng, settings, counters, queue, tuning, version
        )
        self._state = AgentState.CONNECTING
        self._why = "waiting for the metastore to answer"
        self._stopped = asyncio.Event()
        self._backoff = Backoff(clock=clock, rng=rng, first=settings.retry_seconds, longest=_LONGEST_PAUSE)
        self._transaction_jobs = PartitionJobs(settings.transactions, queue)
        self._replica_jobs = PartitionJobs(settings.replicas_at_once, queue)
        self._retries = PartitionRetries(queue, clock=clock, rng=rng, tuning=tuning)
        self._guard = MetastoreGuard(context)
        self._inhibition = LeadershipInhibition(context)
        self._assemble()
        groups.on_change = queue.add

    def _assemble(self) -> None:
        """Create the parts that hold metastore state.

        It is called again when a metastore is adopted, as after a process start.
        """
        context = self._context
        keys, me = context.keys, context.me
        self._partitions = TrackedPartitions(context)
        self._tables = TableStates(keys)
        self._stores = PeerRegistry(keys, me.store)
        self._writes = WriteBatcher(context)
        self._reader = PartitionReader(context, self._on_read)
        self._registration = StoreRegistration(context, on_registered=self._enqueue_all)
        transfers = LeadershipTransfers(context, self._retries)
        self._orders = OrderedTransfers(context, writes=self._writes, retries=self._retries, transfers=transfers)
        self._reporter = StoreReporter(
            context,
            lease=lambda: self._registration.lease,
            problems=self._problems,
            stalled=transfers.after_stall,
            stores=self._stores.count,
            sliced=lambda: context.version.supports(Feature.SPLIT_LOAD),
        )
        self._replicas = ReplicaLifecycle(
            context, partitions=self._partitions, reader=self._reader, jobs=self._replica_jobs, retries=self._retries
        )
        self._drops = TableDrops(
            context,
            partitions=self._partitions,
            tables=self._tables,
            replicas=self._replicas,
            jobs=self._replica_jobs,
            retries=self._retries,
            writes=self._writes,
        )
        self._leader = LeaderDriver(
            context,
            partitions=self._partitions,
            tables=self._tables,
            reader=self._reader,
            jobs=self._transaction_jobs,
            retries=self._retries,
            transfers=transfers,
            records=LeaderRecords(context, writes=self._writes, reader=self._reader),
            orders=self._orders,
        )
        self._watch = MetastoreWatch(
            context,
            guard=self._guard,
            partitions=self._partitions,
            tables=self._tables,
            stores=self._stores,
            orders=self._orders,
            drops=self._drops,
            inhibition=self._inhibition,
            registration=self._registration,
        )
        context.groups.on_state_machine = self._registration.announce

    # Lifecycle

    async def run(self) -> None:
        """Follow the metastore and act on it.

        Raises UnsupportedVersionError if this release cannot be part of the cluster.
        """
        refused: BaseException | None = None
        try:
            async with asyncio.TaskGroup() as tasks:
                self._replica_jobs.open(tasks)
                tasks.create_task(self._reconcile_forever())
                tasks.create_task(self._follow_forever())
                await self._stopped.wait()
                raise _StoppedError
        except* _StoppedError:
            pass
        except* UnsupportedVersionError as errors:
            refused = _first(errors)
        if refused is not None:
            raise refused

    def inhibit_leadership(self, why: str) -> None:
        """Lead nothing, for this reason, until `allow_leadership`."""
        self._inhibition.add(why)

    def allow_leadership(self, why: str) -> None:
        """Remove a reason to lead nothing."""
        self._inhibition.remove(why)

    async def hand_over_all(self) -> int:
        """Hand over all leaderships because the store is stopping; return how many no other store has taken."""
        self._inhibition.add(STOPPING)
        return await self._inhibition.until_handed_over()

    async def stop(self) -> None:
        """Stop gracefully: hand over leaderships, end the registration, then end `run`."""
        await self.hand_over_all()
        await self._registration.deregister()
        self._stopped.set()

    def status(self) -> AgentStatus:
        """Return the agent's current status."""
        state, why, reports = self._state, self._why, self._context.groups.reports()
        if state is AgentState.FOLLOWING and not self._registration.owns_name:
            state, why = AgentState.UNREGISTERED, self._registration.problem
        return AgentStatus(
            state=state,
            why=why,
            revision=self._partitions.revision,
            partitions=len(self._partitions),
            replicas=len(reports),
            leading=sum(report.leading for report in reports.values()),
            handing_over=tuple(self._inhibition.reasons),
            problems=self._problems(reports),
            peers=dict(self._stores.problems),
            counters=self._context.counters,
            version=self._context.version.current,
            announced=self._context.version.announced,
        )

    # Metastore sessions

    async def _follow_forever(self) -> None:
        while True:
            try:
                await self._follow()
            except* MetastoreError as errors:
                error = _first(errors)
                mismatch = isinstance(error, ClusterMismatchError)
                if mismatch:
                    # The client must accept any cluster; the volume's mark decides whether it is the right one.
                    await self._context.metastore.forget()
                self._state = AgentState.MISMATCH if mismatch else AgentState.CONNECTING
                if self._why != str(error):
                    log.warning("not acting on the metastore: %s", error)
                self._why = str(error)
            await self._backoff.wait()

    async def _follow(self) -> None:
        """Run one session: list everything, then watch until something fails."""
        metastore = self._context.metastore
        cluster = await metastore.cluster_id()
        snapshots = {prefix: await metastore.range(prefix) for prefix in self._watch.prefixes}
        revisions = [snapshot.revision for snapshot in snapshots.values()]
        self._guard.observe_adoption(snapshots[self._context.keys.adoption], cluster)
        why = self._guard.mismatch(cluster, min(revisions))
        if self._guard.adoption_requested:
            # An adoption discards all table state, also where this metastore was followed before.
            log.warning("adopting this metastore at the user's request%s", f": {why}" if why else "")
            self._assemble()
        elif why:
            raise ClusterMismatchError(why)
        self._watch.load(snapshots)
        await self._guard.follow(cluster, max(revisions))
        async with asyncio.TaskGroup() as tasks:
            self._transaction_jobs.open(tasks)
            for job in (self._reader, self._writes, self._registration, self._reporter, self._guard):
                tasks.create_task(job.run())
            for prefix, snapshot in snapshots.items():
                tasks.create_task(self._watch.watch(prefix, snapshot))
            tasks.create_task(self._sweep_forever())
            self._state, self._why = AgentState.FOLLOWING, ""
            self._context.counters.sessions += 1
            self._backoff.reset()
            self._enqueue_all()

    async def _sweep_forever(self) -> None:
        while True:
            await self._context.clock.sleep(self._context.settings.sweep_seconds)
            for tracked in self._partitions:
                if tracked.agent.need > max(tracked.read_at, self._partitions.revision):
                    self._reader.request(tracked.partition)
            self._watch.set_peers()
            self._enqueue_all()

    def _enqueue_all(self) -> None:
        self._context.queue.add_all(tracked.partition for tracked in self._partitions)
        self._context.queue.add_all(self._context.groups.running())
        for table in self._tables.dropped():
            self._drops.check(table)

    # Reconciling partitions

    @property
    def _acting(self) -> bool:
        return self._state is AgentState.FOLLOWING and self._registration.owns_name

    async def _reconcile_forever(self) -> None:
        while True:
            for number, partition in enumerate(await self._context.queue.take_all(), start=1):
                self._reconcile(partition)
                if number % _RECONCILES_PER_TURN == 0:
                    await asyncio.sleep(0)
            if self._acting:
                self._drops.confirm_finished()

    def _reconcile(self, partition: Partition) -> None:
        """Reconcile one partition: take the next action that it needs."""
        if not self._acting or self._replica_jobs.busy(partition) or self._transaction_jobs.busy(partition):
            return
        if self._tables.tombstone(partition.table) is not None:
            self._drops.reconcile(partition)
            return
        running = self._context.groups.running().get(partition)
        tracked = self._partitions.get(partition)
        if tracked is None and running is None:
            return
        tracked = tracked or self._partitions.track(partition)
        if not tracked.complete:
            self._reader.request(partition)
            return
        tracked.refresh(self._tables, revision=self._partitions.revision)
        if running is None:
            self._replicas.reconcile_absent(tracked)
        elif not self._replicas.reconcile_running(tracked, running):
            group = self._context.groups.leading(partition)
            if group is None:
                self._leader.not_leading(tracked)
            else:
                self._leader.reconcile(tracked, group)

    def _on_read(self, request: ReadRequest, found: Mapping[str, KeyValue], revision: int) -> None:
        """Record the result of a linearizable read."""
        keys, partition = self._context.keys, request.partition
        self._tables.read(partition.table, found.get(keys.table(partition.table)), at=revision)
        tracked = self._partitions.get(partition)
        if tracked is None:
            return
        tracked.read(found, at=revision)
        tracked.leader, tracked.leader_read = found.get(keys.leader(*partition)), True
        tracked.refresh(self._tables, revision=self._partitions.revision)
        if request.term and tracked.agent.read_term != request.term:
            tracked.agent.begin_term(request.term)
        if request.running is not None:
            tracked.agent.confirm_exclusion(request.running)

    def _problems(self, reports: Mapping[Partition, GroupReport]) -> dict[Partition, str]:
        """Return why partitions make no progress; where several parts report a problem, the most specific one wins."""
        found = dict(self._retries.problems())
        found.update(self._reporter.stalls.problems())
        found.update((partition, report.problem) for partition, report in reports.items() if report.problem)
        found.update((tracked.partition, tracked.problem) for tracked in self._partitions if tracked.problem)
        return found


def _first(errors: BaseExceptionGroup[Exception]) -> BaseException:
    """Return the first leaf error of an exception group."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
