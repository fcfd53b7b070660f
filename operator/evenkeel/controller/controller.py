"""The loop that keeps the tables of one StoreCluster at what their users want.

    stores     which are lost, which are to be replaced, which are being emptied; always before the tables
    tables     each that something was heard of: created, planned, rebalanced, or dropped; then its leaders
    statuses   from what the metastore says after that

Level-based: an event says what to look at, never what happened to it, and now and then everything is looked at. Several
tables are looked at side by side, so that a slow rebalancer holds up its own table only. Every write is fenced by the
epoch, so that a controller that was replaced while it slept changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from typing import Final

from evenkeel.controller.controller_context import ControllerContext
from evenkeel.controller.dropped_table_reconciler import DroppedTableReconciler
from evenkeel.controller.error_problems import UNAVAILABLE, unavailable_problem
from evenkeel.controller.resources_api import Resources
from evenkeel.controller.status_writer import StatusWriter, readable
from evenkeel.controller.store_reconciler import StoreReconciler
from evenkeel.controller.table_reconciler import TableReconciler
from evenkeel.controller.worklist import Worklist
from evenkeel.errors import ClusterMismatchError, EvenkeelError, FencedError
from evenkeel.metastore.metastore_api import Event, KeyValue, Metastore
from evenkeel.metastore.operator_epoch import Epoch, acquire_epoch
from evenkeel.model.conditions import Reason
from evenkeel.protocol.keys import Keys, table_name
from evenkeel.reconcile.cluster_status import cluster_problem_status
from evenkeel.reconcile.partition_status import Problem
from evenkeel.reconcile.table_status import problem_status
from evenkeel.runtime.clock import Clock, SystemClock
from evenkeel.runtime.log_context import about

__all__ = ["Controller"]

log = logging.getLogger(__name__)

SWEEP_SECONDS: Final = 30.0
"""How often everything is looked at, whether or not something was heard of it."""
RETRY_SECONDS: Final = 2.0
REPORT_SECONDS: Final = 2.0
"""How soon a look follows what is only worth one for the figures in a status."""
IDENTITY_SECONDS: Final = 2.0
"""For so long a metastore that was the right one counts as such."""
AT_ONCE: Final = 8
"""Tables that are looked at side by side."""
STORES: Final = ""
"""What stands for the stores among the names of tables."""


class Controller:
    """Runs until it is cancelled, or until another one has taken the epoch."""

    def __init__(
        self,
        metastore: Metastore,
        *,
        keys: Keys,
        resources: Resources,
        holder: str,
        clock: Clock | None = None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """`today` tells seconds since 1970, for what people read; `clock` everything else."""
        self._resources = resources
        self._holder = holder
        self._clock = clock or SystemClock()
        self._context = ControllerContext(metastore, keys=keys, clock=self._clock, wall_clock=wall_clock)
        statuses = StatusWriter(resources, self._context)
        self._tables = TableReconciler(resources, self._context, statuses)
        self._stores = StoreReconciler(resources, self._context, statuses)
        self._dropped = DroppedTableReconciler(resources, self._context)
        self._work = Worklist(self._clock, before_all=STORES)
        self._hear_all = False
        self._mismatched = False
        """Whether another metastore has answered since this controller took charge."""
        self._told: tuple[Reason, bool] | None = None
        """Why nothing can be done, as statuses have it, and whether it has come to what a user can do about it."""
        self._identity: tuple[str | None, bool] | None = None
        self._identity_until = float("-inf")
        self.problem = ""
        """Why nothing can be done at the moment, if so."""

    @property
    def at_rest(self) -> bool:
        """Whether all that was heard of has been looked at."""
        return self._work.at_rest

    @property
    def dropped(self) -> int:
        """How many deleted tables there are whose data is kept."""
        return len(self._dropped.kept)

    @property
    def epoch(self) -> Epoch | None:
        """What every write for this StoreCluster compares; None until it is taken."""
        return self._context.epoch

    def assignments(self) -> Iterable[KeyValue] | None:
        """Every key that says who holds or will hold a partition, as last seen.

        None where nobody watches, or where the metastore does not name all replicas since it was adopted.
        """
        return self._context.mirror.assignments() if self._context.complete else None

    async def run(self) -> None:
        """Look, and look again whenever something was heard; FencedError when another controller is in charge."""
        try:
            async with asyncio.TaskGroup() as tasks:
                await self._take_charge()
                tasks.create_task(self._listen_to_metastore())
                tasks.create_task(self._listen_to_resources())
                tasks.create_task(self._sweep())
                for _ in range(AT_ONCE):
                    tasks.create_task(self._labour())
        except BaseExceptionGroup as group:
            if (fenced := group.subgroup(FencedError)) is not None:
                raise _first(fenced) from None
            raise
        finally:
            self._context.mirror.forget()

    async def _take_charge(self) -> None:
        while self._context.epoch is None:
            try:
                await self._check_identity()
                await self._context.check_version()
                self._context.epoch = await acquire_epoch(
                    self._context.metastore, self._context.keys.epoch, self._holder
                )
            except UNAVAILABLE as error:
                await self._put_off(error)

    # Listening

    def hear(self, table: str | None = None) -> None:
        """Look at a table soon, by its name, or at everything; at the stores before it, for tables rest on them."""
        self._work.add(STORES)
        if table is None:
            self._hear_all = True
        else:
            self._work.add(table)

    async def _listen_to_resources(self) -> None:
        while True:
            try:
                async for table in self._resources.changes():
                    self.hear(table)
            except UNAVAILABLE as error:
                await self._put_off(error)

    async def _listen_to_metastore(self) -> None:
        metastore, root = self._context.metastore, self._context.keys.root
        while True:
            try:
                await self._check_identity()
                snapshot = await metastore.range(root)
                self._context.reports.fill(snapshot.kvs)
                self._context.mirror.fill(snapshot)
                self.hear()
                async for batch in metastore.watch(root, after=snapshot):
                    for event in batch.events:
                        self._context.mirror.take(event)
                        self._hear_event(event)
                    self._context.mirror.advance(batch.revision)
            except UNAVAILABLE as error:
                self._context.mirror.forget()
                await self._put_off(error)

    def _hear_event(self, event: Event) -> None:
        kind, _, rest = event.key.removeprefix(self._context.keys.root).partition("/")
        table = table_name(rest.partition("/")[0])
        match kind:
            case "epoch":
                self._context.judge_epoch(event.kv)
            case "stores" | "stores.state" | "drains" | "version":
                self.hear()
            case "settings" | "adoption":
                self._work.add(STORES)
            case "load":
                news = self._context.reports.take(event.key, event.kv)
                for table in map(table_name, news.damaged):
                    self._work.add(table)
                moving = self._tables.moving.intersection(map(table_name, news.named))
                for table in moving.union(map(table_name, news.problems)):
                    self._work.add(table, after=REPORT_SECONDS)
            case _ if table:
                self._work.add(table)
                self._hear_of_dropped(kind, rest.partition("/")[0], event)
                if self._stores.draining and kind == "partition.assignments.stable":
                    self._work.add(STORES, after=REPORT_SECONDS)

    def _hear_of_dropped(self, kind: str, key: str, event: Event) -> None:
        """A deleted table is looked at by its key: that of its name may have been made again meanwhile."""
        kept = kind == "tables" and event.kv is not None and b'"dropped"' in event.kv.value
        if kept or kind == "tables.dropped" or key in self._dropped.kept:
            self._work.add(key)
            if kind == "tables":
                self._work.add(STORES)

    async def _sweep(self) -> None:
        """Look at everything from time to time, tables one after the other rather than all at once."""
        while True:
            await self._clock.sleep(SWEEP_SECONDS)
            self._work.add(STORES)
            try:
                tables = await self._resources.tables()
            except UNAVAILABLE as error:
                await self._put_off(error)
                continue
            for key in self._dropped.kept:
                self._work.add(key)
            for at, table in enumerate(tables):
                self._work.add(table.metadata.name, after=SWEEP_SECONDS * at / len(tables))

    # Looking

    async def _labour(self) -> None:
        while True:
            name = await self._work.take()
            try:
                again = await self._look(name)
                self.problem = ""
            except UNAVAILABLE as error:
                await self._unreachable(error)
                again = RETRY_SECONDS
            finally:
                self._work.done(name)
            if again:
                self._work.add(name, after=again)

    async def _check_identity(self) -> None:
        """ClusterMismatchError where another metastore answers than before."""
        cluster = await self._resources.store_cluster()
        known = (cluster.spec.adopt_metastore, cluster.status is None) if cluster is not None else None
        if self._identity == known and self._clock.now() < self._identity_until and not self._context.adopting:
            return
        await self._context.check_identity(cluster)
        if self._mismatched:
            raise FencedError("another etcd has answered meanwhile: what is known of it counts for nothing; begin anew")
        self._identity, self._identity_until = known, self._clock.now() + IDENTITY_SECONDS

    async def _look(self, name: str) -> float:
        """Look at a table, or at the stores; every line that is logged meanwhile says of what."""
        with about(store_cluster=self._context.keys.root.strip("/").partition("/")[2]):
            await self._check_identity()
            if name == STORES:
                return await self._look_at_stores()
            with about(table=table_name(name)):
                return await self._look_at_table(name)

    async def _look_at_table(self, name: str) -> float:
        """Look at a table, or at a deleted one by its key; at the stores again where it newly holds one up, or no more.

        The StoreCluster's status says so.
        """
        before = self._held_up()
        again = await (self._dropped if "." in name else self._tables).look(name)
        if self._stores.draining and self._held_up() != before:
            self._work.add(STORES)
        return again

    def _held_up(self) -> dict[str, Problem]:
        """By the key of a table, why it cannot be placed as wanted; deleted ones included."""
        return {**self._tables.held_up, **self._dropped.held_up}

    async def _look_at_stores(self) -> float:
        everything, self._hear_all = self._hear_all, False
        try:
            kept = await self._dropped.find()
            again = await self._stores.look(self._dropped, self._held_up())
            if everything:
                for key in kept:
                    self._work.add(key)
                for table in await self._resources.tables():
                    self._work.add(table.metadata.name)
        except UNAVAILABLE:
            self._hear_all = everything
            raise
        except FencedError:
            raise
        except Exception as error:  # a bug must not cost the tables their controller
            log.exception("the look at the stores failed")
            await self._tell(Problem(Reason.INTERNAL_ERROR, f"{type(error).__name__}: {error}"))
            return SWEEP_SECONDS
        return again

    async def _put_off(self, error: EvenkeelError) -> None:
        """Say that nothing can be done, and wait a little."""
        await self._unreachable(error)
        await self._clock.sleep(RETRY_SECONDS)

    async def _unreachable(self, error: EvenkeelError) -> None:
        """Say once that nothing can be done; what another metastore says is judged by `check_identity`."""
        self._identity_until = float("-inf")
        if isinstance(error, ClusterMismatchError):
            self._mismatched = self._context.epoch is not None
            if await self._remembered():
                await self._context.metastore.forget()
        problem = unavailable_problem(error)
        told = (problem.reason, "adoptMetastore" in problem.message)
        if not self.problem or told != self._told:
            log.warning("nothing is changed for now: %s", error)
            self.problem, self._told = str(error), told
            await self._tell(problem)

    async def _remembered(self) -> bool:
        """Have the status remember what was seen of the metastore; False where it cannot be written now.

        It is all that a successor judges by. Noted only from time to time, its revision would be one that a recent
        backup has reached.
        """
        try:
            cluster = await self._resources.store_cluster()
            if cluster is not None and cluster.status is not None:
                noted = self._context.remembered(cluster)
                if noted != cluster.status.metastore:
                    await self._resources.set_status(cluster, cluster.status.model_copy(update={"metastore": noted}))
        except ClusterMismatchError:
            return True  # the status is in this metastore too, as in a local cluster
        except EvenkeelError as error:
            log.warning("what was seen of etcd is not noted yet: %s", error)
            return False
        return True

    async def _tell(self, problem: Problem) -> None:
        """Write to every status what concerns all, where statuses can be written."""
        now, version = self._context.now(), self._context.newest_version
        try:
            cluster = await self._resources.store_cluster()
            if cluster is not None:
                version = max(version, cluster.status.version if cluster.status is not None else 0)
                told = cluster_problem_status(cluster, problem, now=now)
                await self._resources.set_status(cluster, readable(told, version))
            for table in await self._resources.tables():
                await self._resources.set_status(table, readable(problem_status(table, problem, now=now), version))
        except EvenkeelError as error:
            log.warning("statuses cannot be written either: %s", error)


def _first(group: BaseExceptionGroup[FencedError]) -> FencedError:
    found = group.exceptions[0]
    return _first(found) if isinstance(found, BaseExceptionGroup) else found
