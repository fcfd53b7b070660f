"""Reconciles the tables of one StoreCluster until another controller takes over.

    stores     which are lost, replaced or drained; always before the tables, which depend on them
    tables     created, planned, rebalanced or dropped; then leaders are handed over
    statuses   derived from the metastore after that

Reconciliation is level-based: an event names what to reconcile, not what happened to it, and everything is reconciled
periodically. Several tables are reconciled concurrently, so a slow rebalancer delays only its own table. Every write is
fenced by the epoch, so a controller that was replaced while it was suspended changes nothing.
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
from evenkeel.errors import ClusterMismatchError, EvenkeelError, FencedError
from evenkeel.metastore.metastore_api import Event, KeyValue, Metastore
from evenkeel.metastore.operator_epoch import Epoch, acquire_epoch
from evenkeel.model.conditions import Reason
from evenkeel.protocol.keys import Keys, table_name
from evenkeel.reconcile.cluster_status import cluster_problem_status
from evenkeel.reconcile.readiness import Problem
from evenkeel.reconcile.table_status import problem_status
from evenkeel.runtime.clock import Clock, SystemClock
from evenkeel.runtime.log_context import log_context
from evenkeel.runtime.work_queue import Workers, WorkQueue

__all__ = ["Controller"]

log = logging.getLogger(__name__)

RESYNC_SECONDS: Final = 30.0
"""How often everything is reconciled without an event."""
RETRY_SECONDS: Final = 2.0
REPORT_SECONDS: Final = 2.0
"""Delay after a store's report that only changes figures in a status."""
IDENTITY_SECONDS: Final = 2.0
"""How long a check of the metastore's identity stays valid."""
MIN_INTERVAL_SECONDS: Final = 0.2
"""Between two reconciliations of a table, so that a burst of events causes one."""
CONCURRENCY: Final = 8
"""Tables that are reconciled at the same time."""
STORES: Final = ""
"""The queue's key for the stores, among the names of tables."""


class Controller:
    """Runs until it is cancelled or another controller has taken the epoch."""

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
        """`wall_clock` returns seconds since 1970, for timestamps; `clock` measures everything else."""
        self._resources = resources
        self._holder = holder
        self._clock = clock or SystemClock()
        self._context = ControllerContext(metastore, keys=keys, clock=self._clock, wall_clock=wall_clock)
        statuses = StatusWriter(resources, self._context)
        self._tables = TableReconciler(resources, self._context, statuses)
        self._stores = StoreReconciler(resources, self._context, statuses)
        self._dropped = DroppedTableReconciler(resources, self._context)
        self._queue = WorkQueue[str](self._clock, min_interval=MIN_INTERVAL_SECONDS, exclusive=STORES)
        self._workers = Workers(self._queue, self._reconcile, count=CONCURRENCY, fatal=(Exception,))
        self._enqueue_all = False
        """Whether the next reconciliation of the stores enqueues every table."""
        self._mismatched = False
        """Whether a different metastore has answered since this controller took the epoch."""
        self._reported: tuple[Reason, bool] | None = None
        """The reported problem's reason, and whether its message says how to adopt the metastore."""
        self._identity: tuple[str | None, bool] | None = None
        self._identity_until = float("-inf")
        self.problem = ""
        """Why reconciliation is suspended; empty if it is not."""

    @property
    def idle(self) -> bool:
        """Whether everything that was enqueued has been reconciled."""
        return self._queue.idle

    @property
    def dropped(self) -> int:
        """How many deleted tables have retained data."""
        return len(self._dropped.kept)

    @property
    def epoch(self) -> Epoch | None:
        """The epoch that fences every write for this StoreCluster; None until it is acquired."""
        return self._context.epoch

    def assignments(self) -> Iterable[KeyValue] | None:
        """Every key that names a current or future replica, as last seen.

        None without a watch, and while the adopted metastore does not name all replicas yet.
        """
        return self._context.mirror.assignments() if self._context.complete else None

    async def run(self) -> None:
        """Reconcile on every change; raise FencedError when another controller takes over."""
        try:
            async with asyncio.TaskGroup() as tasks:
                await self._acquire_epoch()
                tasks.create_task(self._watch_metastore())
                tasks.create_task(self._watch_resources())
                tasks.create_task(self._resync())
                tasks.create_task(self._workers.run())
        except BaseExceptionGroup as group:
            if (fenced := group.subgroup(FencedError)) is not None:
                raise _first(fenced) from None
            raise
        finally:
            self._context.mirror.clear()

    async def _acquire_epoch(self) -> None:
        while self._context.epoch is None:
            try:
                await self._check_identity()
                await self._context.check_version()
                self._context.epoch = await acquire_epoch(
                    self._context.metastore, self._context.keys.epoch, self._holder
                )
            except UNAVAILABLE as error:
                await self._back_off(error)

    # Events

    def enqueue(self, table: str | None = None) -> None:
        """Reconcile the stores, then a table by its name, or everything."""
        self._queue.add(STORES)
        if table is None:
            self._enqueue_all = True
        else:
            self._queue.add(table)

    async def _watch_resources(self) -> None:
        while True:
            try:
                async for table in self._resources.changes():
                    self.enqueue(table)
            except UNAVAILABLE as error:
                await self._back_off(error)

    async def _watch_metastore(self) -> None:
        metastore, root = self._context.metastore, self._context.keys.root
        while True:
            try:
                await self._check_identity()
                snapshot = await metastore.range(root)
                self._context.reports.fill(snapshot.kvs)
                self._context.mirror.fill(snapshot)
                self.enqueue()
                async for batch in metastore.watch(root, after=snapshot):
                    for event in batch.events:
                        self._context.mirror.apply(event)
                        self._enqueue_for(event)
                    self._context.mirror.advance(batch.revision)
            except UNAVAILABLE as error:
                self._context.mirror.clear()
                await self._back_off(error)

    def _enqueue_for(self, event: Event) -> None:
        kind, _, rest = event.key.removeprefix(self._context.keys.root).partition("/")
        table = table_name(rest.partition("/")[0])
        match kind:
            case "epoch":
                self._context.check_epoch(event.kv)
            case "stores" | "stores.state" | "drains" | "version":
                self.enqueue()
            case "settings" | "adoption":
                self._queue.add(STORES)
            case "load":
                concerned = self._context.reports.apply(event.key, event.kv)
                self._queue.add_all(map(table_name, concerned.damaged))
                moving = self._tables.moving.intersection(map(table_name, concerned.named))
                for table in moving.union(map(table_name, concerned.problems)):
                    self._queue.add(table, after=REPORT_SECONDS)
            case _ if table:
                self._queue.add(table)
                self._enqueue_dropped(kind, rest.partition("/")[0], event)
                if self._stores.draining and kind == "partition.assignments.stable":
                    self._queue.add(STORES, after=REPORT_SECONDS)

    def _enqueue_dropped(self, kind: str, key: str, event: Event) -> None:
        """Enqueue a deleted table by its key: its name may belong to a new table by now."""
        kept = kind == "tables" and event.kv is not None and b'"dropped"' in event.kv.value
        if kept or kind == "tables.dropped" or key in self._dropped.kept:
            self._queue.add(key)
            if kind == "tables":
                self._queue.add(STORES)

    async def _resync(self) -> None:
        """Enqueue everything periodically, tables spread over the interval."""
        while True:
            await self._clock.sleep(RESYNC_SECONDS)
            self._queue.add(STORES)
            try:
                tables = await self._resources.tables()
            except UNAVAILABLE as error:
                await self._back_off(error)
                continue
            self._queue.add_all(self._dropped.kept)
            for at, table in enumerate(tables):
                self._queue.add(table.metadata.name, after=RESYNC_SECONDS * at / len(tables))

    # Reconciliation

    async def _reconcile(self, name: str) -> float | None:
        """Reconcile a table or the stores; return in how many seconds to do so again, or None."""
        try:
            again = await self._reconcile_with_context(name)
            self.problem = ""
        except UNAVAILABLE as error:
            await self._report_unavailable(error)
            again = RETRY_SECONDS
        return again or None

    async def _reconcile_with_context(self, name: str) -> float:
        with log_context(store_cluster=self._context.keys.root.strip("/").partition("/")[2]):
            await self._check_identity()
            if name == STORES:
                return await self._reconcile_stores()
            with log_context(table=table_name(name)):
                return await self._reconcile_table(name)

    async def _check_identity(self) -> None:
        """Raise ClusterMismatchError if a different metastore answers than before."""
        cluster = await self._resources.store_cluster()
        known = (cluster.spec.adopt_metastore, cluster.status is None) if cluster is not None else None
        if self._identity == known and self._clock.now() < self._identity_until and not self._context.adopting:
            return
        await self._context.check_identity(cluster)
        if self._mismatched:
            raise FencedError("a different etcd cluster answered in between; restart with nothing cached")
        self._identity, self._identity_until = known, self._clock.now() + IDENTITY_SECONDS

    async def _reconcile_table(self, name: str) -> float:
        """Reconcile a table by name, or a deleted one by key.

        Enqueue the stores if the table starts or stops blocking a drain: the StoreCluster's status reports that.
        """
        before = self._blocked_tables()
        again = await (self._dropped if "." in name else self._tables).reconcile(name)
        if self._stores.draining and self._blocked_tables() != before:
            self._queue.add(STORES)
        return again

    def _blocked_tables(self) -> dict[str, Problem]:
        """By table key, deleted tables included, why the table cannot be placed as desired."""
        return {**self._tables.blocked, **self._dropped.blocked}

    async def _reconcile_stores(self) -> float:
        everything, self._enqueue_all = self._enqueue_all, False
        try:
            dropped = await self._dropped.find()
            again = await self._stores.reconcile(self._dropped, self._blocked_tables())
            if everything:
                self._queue.add_all(dropped)
                self._queue.add_all(table.metadata.name for table in await self._resources.tables())
        except UNAVAILABLE:
            self._enqueue_all = everything
            raise
        except FencedError:
            raise
        except Exception as error:  # a bug here must not stop the tables' reconciliation
            log.exception("reconciling the stores failed unexpectedly; retrying in %g s", RESYNC_SECONDS)
            await self._report(Problem(Reason.INTERNAL_ERROR, f"{type(error).__name__}: {error}"))
            return RESYNC_SECONDS
        return again

    # Problems that concern every table

    async def _back_off(self, error: EvenkeelError) -> None:
        """Report that reconciliation is suspended, and wait before a retry."""
        await self._report_unavailable(error)
        await self._clock.sleep(RETRY_SECONDS)

    async def _report_unavailable(self, error: EvenkeelError) -> None:
        """Report once why reconciliation is suspended."""
        self._identity_until = float("-inf")
        if isinstance(error, ClusterMismatchError):
            self._mismatched = self._context.epoch is not None
            if await self._record_metastore():
                await self._context.metastore.forget()
        problem = unavailable_problem(error)
        reported = (problem.reason, "adoptMetastore" in problem.message)
        if not self.problem or reported != self._reported:
            log.warning("reconciliation is suspended: %s", error)
            self.problem, self._reported = str(error), reported
            await self._report(problem)

    async def _record_metastore(self) -> bool:
        """Record in the status what was seen of the metastore; return False if it cannot be written now.

        The next controller knows nothing else. The status notes a revision only from time to time, and a recent backup
        may have reached that one.
        """
        try:
            cluster = await self._resources.store_cluster()
            if cluster is not None and cluster.status is not None:
                noted = self._context.metastore_to_record(cluster)
                if noted != cluster.status.metastore:
                    await self._resources.set_status(cluster, cluster.status.model_copy(update={"metastore": noted}))
        except ClusterMismatchError:
            return True  # the status is in this metastore too, as in a local cluster
        except EvenkeelError as error:
            log.warning("cannot record the etcd cluster and its revision in the status yet; retrying: %s", error)
            return False
        return True

    async def _report(self, problem: Problem) -> None:
        """Write a problem that concerns everything to every status that can be written."""
        now, version = self._context.now(), self._context.newest_version
        try:
            cluster = await self._resources.store_cluster()
            if cluster is not None:
                version = max(version, cluster.status.version if cluster.status is not None else 0)
                status = cluster_problem_status(cluster, problem, now=now)
                await self._resources.set_status(cluster, readable(status, version))
            for table in await self._resources.tables():
                await self._resources.set_status(table, readable(problem_status(table, problem, now=now), version))
        except EvenkeelError as error:
            log.warning("cannot write statuses: %s", error)


def _first(group: BaseExceptionGroup[FencedError]) -> FencedError:
    found = group.exceptions[0]
    return _first(found) if isinstance(found, BaseExceptionGroup) else found
