"""The sidecar half of the rebalance protocol at work: one agent per store.

    session   list and watch what is needed, if the metastore is the one this volume follows; begin anew when it fails
    step      look at each partition that something was heard of: start, delete, lead
    reports   the store's registration, who leads, load

Everything is level-based. Whatever is heard, from the watch, from raft or of a finished transaction, only says which
partition to look at again, and a slow sweep looks at all of them. What is remembered in between may be lost at any
moment. Without a metastore replicas run on; the agent tries again, says so, and does nothing else.
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
from evenkeel.versions import Feature
from evenkeel_raft.agent.agent_context import Context, StoreIdentity
from evenkeel_raft.agent.agent_counters import Counters
from evenkeel_raft.agent.agent_queue import Pool, Work
from evenkeel_raft.agent.agent_settings import AgentSettings, Tuning
from evenkeel_raft.agent.agent_status import AgentState, AgentStatus
from evenkeel_raft.agent.cluster_version_watch import Version
from evenkeel_raft.agent.leader_driver import Leading
from evenkeel_raft.agent.leader_records import LeaderReports
from evenkeel_raft.agent.leadership_inhibition import Reluctance
from evenkeel_raft.agent.leadership_transfers import Transfers
from evenkeel_raft.agent.metastore_guard import Guard
from evenkeel_raft.agent.metastore_watch import Following
from evenkeel_raft.agent.ordered_transfers import Orders
from evenkeel_raft.agent.partition_reader import Reader, Ticket
from evenkeel_raft.agent.partition_retries import Attempts
from evenkeel_raft.agent.peer_registry import Stores
from evenkeel_raft.agent.replica_lifecycle import Replicas
from evenkeel_raft.agent.store_registration import Registration
from evenkeel_raft.agent.store_report import LoadReports
from evenkeel_raft.agent.table_drops import Drops
from evenkeel_raft.agent.table_states import Tables
from evenkeel_raft.agent.tracked_partitions import Seats
from evenkeel_raft.agent.write_batcher import Writes
from evenkeel_raft.shared.raft_groups import GroupReport, Groups, Partition

__all__ = ["Agent"]

log = logging.getLogger(__name__)

STOPPING = "this store is stopping"
_LONGEST_PAUSE = 5.0
_STEPS_PER_TURN = 100
"""Partitions looked at before others get their turn on the loop."""


class _StoppedError(Exception):
    """Ends everything that runs."""


class Agent:
    """Runs one store's half of the protocol: `run` until cancelled, or until `stop` is done."""

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
        work, counters, version = Work(clock), Counters(), Version(keys, groups)
        tuning = self.tuning = Tuning(settings)
        context = self._context = Context(
            metastore, keys, groups, me, clock, rng, settings, counters, work, tuning, version
        )
        self._state = AgentState.CONNECTING
        self._why = "the metastore has yet to answer"
        self._stopped = asyncio.Event()
        self._pause = Backoff(clock=clock, rng=rng, first=settings.retry_seconds, longest=_LONGEST_PAUSE)
        self._writing = Pool(settings.transactions, work)
        self._changing = Pool(settings.replicas_at_once, work)
        self._attempts = Attempts(work, clock=clock, rng=rng, tuning=tuning)
        self._guard = Guard(context)
        self._reluctance = Reluctance(context)
        self._assemble()
        groups.on_change = work.stir

    def _assemble(self) -> None:
        """Make the parts that know what the metastore says; again for one that is adopted, as if the process began."""
        context = self._context
        keys, me = context.keys, context.me
        self._seats = Seats(context)
        self._tables = Tables(keys)
        self._stores = Stores(keys, me.store)
        self._writes = Writes(context)
        self._reader = Reader(context, self._on_read)
        self._registration = Registration(context, on_admitted=self._look_at_everything)
        transfers = Transfers(context, self._attempts)
        self._orders = Orders(context, writes=self._writes, attempts=self._attempts, transfers=transfers)
        self._load = LoadReports(
            context,
            lease=lambda: self._registration.lease,
            problems=self._problems,
            stalled=transfers.after_stall,
            stores=self._stores.count,
            sliced=lambda: context.version.supports(Feature.SPLIT_LOAD),
        )
        self._replicas = Replicas(
            context, seats=self._seats, reader=self._reader, pool=self._changing, attempts=self._attempts
        )
        self._drops = Drops(
            context,
            seats=self._seats,
            tables=self._tables,
            replicas=self._replicas,
            pool=self._changing,
            attempts=self._attempts,
            writes=self._writes,
        )
        self._leading = Leading(
            context,
            seats=self._seats,
            tables=self._tables,
            reader=self._reader,
            pool=self._writing,
            attempts=self._attempts,
            transfers=transfers,
            reports=LeaderReports(context, writes=self._writes, reader=self._reader),
            orders=self._orders,
        )
        self._following = Following(
            context,
            guard=self._guard,
            seats=self._seats,
            tables=self._tables,
            stores=self._stores,
            orders=self._orders,
            drops=self._drops,
            reluctance=self._reluctance,
            registration=self._registration,
        )
        context.groups.on_machine = self._registration.announce

    # Living

    async def run(self) -> None:
        """Follow the metastore and act on it; UnsupportedVersionError where this release must not."""
        refused: BaseException | None = None
        try:
            async with asyncio.TaskGroup() as life:
                self._changing.open(life)
                life.create_task(self._step_forever())
                life.create_task(self._follow_forever())
                await self._stopped.wait()
                raise _StoppedError
        except* _StoppedError:
            pass
        except* UnsupportedVersionError as errors:
            refused = _first(errors)
        if refused is not None:
            raise refused

    def relinquish(self, why: str) -> None:
        """Lead nothing, for this reason, until `resume`."""
        self._reluctance.add(why)

    def resume(self, why: str) -> None:
        """This reason to lead nothing is gone."""
        self._reluctance.remove(why)

    async def drain(self) -> int:
        """The store is stopping: hand over all it leads; returns how many groups nobody has taken."""
        self._reluctance.add(STOPPING)
        return await self._reluctance.until_handed_over()

    async def stop(self) -> None:
        """End gracefully: hand over, end the registration, then `run`."""
        await self.drain()
        await self._registration.leave()
        self._stopped.set()

    def status(self) -> AgentStatus:
        """A moment of the agent."""
        state, why, reports = self._state, self._why, self._context.groups.reports()
        if state is AgentState.FOLLOWING and not self._registration.admitted:
            state, why = AgentState.UNREGISTERED, self._registration.problem
        return AgentStatus(
            state=state,
            why=why,
            revision=self._seats.revision,
            partitions=len(self._seats),
            replicas=len(reports),
            leading=sum(report.leading for report in reports.values()),
            handing_over=tuple(self._reluctance.reasons),
            problems=self._problems(reports),
            peers=dict(self._stores.problems),
            counters=self._context.counters,
            version=self._context.version.current,
            announced=self._context.version.announced,
        )

    # Following the metastore

    async def _follow_forever(self) -> None:
        while True:
            try:
                await self._follow()
            except* MetastoreError as errors:
                error = _first(errors)
                mismatch = isinstance(error, ClusterMismatchError)
                if mismatch:
                    # From here on the volume's own memory tells whether it is the right one.
                    await self._context.metastore.forget()
                self._state = AgentState.MISMATCH if mismatch else AgentState.CONNECTING
                if self._why != str(error):
                    log.warning("nothing is changed for now: %s", error)
                self._why = str(error)
            await self._pause.wait()

    async def _follow(self) -> None:
        """One session: from a listing of everything until something fails."""
        metastore = self._context.metastore
        cluster = await metastore.cluster_id()
        snapshots = {prefix: await metastore.range(prefix) for prefix in self._following.prefixes}
        revisions = [snapshot.revision for snapshot in snapshots.values()]
        self._guard.see_adoption(snapshots[self._context.keys.adoption], cluster)
        why = self._guard.mismatch(cluster, min(revisions))
        if self._guard.asked_to_follow:
            # Every adoption removes what the metastore says of tables, also of one that was followed all along.
            log.warning("this metastore is adopted, as the user asked for%s", f": {why}" if why else "")
            self._assemble()
        elif why:
            raise ClusterMismatchError(why)
        self._following.begin(snapshots)
        await self._guard.follow(cluster, max(revisions))
        async with asyncio.TaskGroup() as tasks:
            self._writing.open(tasks)
            for job in (self._reader, self._writes, self._registration, self._load, self._guard):
                tasks.create_task(job.run())
            for prefix, snapshot in snapshots.items():
                tasks.create_task(self._following.watch(prefix, snapshot))
            tasks.create_task(self._sweep_forever())
            self._state, self._why = AgentState.FOLLOWING, ""
            self._context.counters.sessions += 1
            self._pause.reset()
            self._look_at_everything()

    async def _sweep_forever(self) -> None:
        while True:
            await self._context.clock.sleep(self._context.settings.sweep_seconds)
            for seat in self._seats:
                if seat.agent.need > max(seat.read_at, self._seats.revision):
                    self._reader.want(seat.partition)
            for table in self._tables.dropped():
                self._drops.touch(table)
            self._following.set_peers()
            self._look_at_everything()

    def _look_at_everything(self) -> None:
        self._context.work.stir_all(seat.partition for seat in self._seats)
        self._context.work.stir_all(self._context.groups.running())

    # Looking at partitions

    @property
    def _acting(self) -> bool:
        return self._state is AgentState.FOLLOWING and self._registration.admitted

    async def _step_forever(self) -> None:
        while True:
            for number, partition in enumerate(await self._context.work.next(), start=1):
                self._step(partition)
                if number % _STEPS_PER_TURN == 0:
                    await asyncio.sleep(0)
            if self._acting:
                self._drops.settle()

    def _step(self, partition: Partition) -> None:
        """Look at one partition, and do the next thing about it."""
        if not self._acting or self._changing.busy(partition) or self._writing.busy(partition):
            return
        if self._tables.tombstone(partition.table) is not None:
            self._drops.step(partition)
            return
        running = self._context.groups.running().get(partition)
        seat = self._seats.get(partition)
        if seat is None and running is None:
            return
        seat = seat or self._seats.take_seat(partition)
        if not seat.whole:
            self._reader.want(partition)
            return
        seat.look(self._tables, revision=self._seats.revision)
        if running is None:
            self._replicas.step_without(seat)
        elif not self._replicas.step_with(seat, running):
            group = self._context.groups.leading(partition)
            if group is None:
                self._leading.follow(seat)
            else:
                self._leading.step(seat, group)

    def _on_read(self, ticket: Ticket, found: Mapping[str, KeyValue], revision: int) -> None:
        """A linearizable read has arrived."""
        keys, partition = self._context.keys, ticket.partition
        self._tables.read(partition.table, found.get(keys.table(partition.table)), at=revision)
        seat = self._seats.get(partition)
        if seat is None:
            return
        seat.read(found, at=revision)
        seat.leader, seat.leader_read = found.get(keys.leader(*partition)), True
        seat.look(self._tables, revision=self._seats.revision)
        if ticket.term and seat.agent.read_term != ticket.term:
            seat.agent.begin_term(ticket.term)
        if ticket.running is not None:
            seat.agent.clear(ticket.running)

    def _problems(self, reports: Mapping[Partition, GroupReport]) -> dict[Partition, str]:
        """Why partitions do not get on, of all who know something about it; the most telling last."""
        found = dict(self._attempts.problems())
        found.update(self._load.stalls.problems())
        found.update((partition, report.problem) for partition, report in reports.items() if report.problem)
        found.update((seat.partition, seat.problem) for seat in self._seats if seat.problem)
        return found


def _first(errors: BaseExceptionGroup[Exception]) -> BaseException:
    """The first error of a group, however deep."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
