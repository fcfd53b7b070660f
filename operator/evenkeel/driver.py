"""Runs a reconciliation's requests on a real metastore.

This is the only place where the pure parts meet IO: reads at one revision, transactions one at a time, a plan's batches
concurrently, and rebalancers, which may be slow and run in their own process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from evenkeel.errors import FencedError
from evenkeel.metastore.metastore_api import Metastore, Snapshot, TxnResult
from evenkeel.metastore.operator_epoch import Epoch
from evenkeel.protocol.plan_run import Batch, PlanRun
from evenkeel.rebalancers.rebalancer_runner import rebalance
from evenkeel.reconcile.reconcile_requests import Carry, Commit, Found, Place, Read, Request, Requests

__all__ = ["IN_FLIGHT", "carry", "drive", "read_at_one_revision"]

IN_FLIGHT = 16
"""Concurrent transactions of one plan; etcd gains nothing from more."""
T = TypeVar("T")
Reader = Callable[[tuple[str, ...]], Awaitable[Found]]
Wrote = Callable[[TxnResult], None]


async def drive(
    requests: Requests[T],
    *,
    metastore: Metastore,
    epoch: Epoch,
    read: Reader | None = None,
    wrote: Wrote = lambda _: None,
) -> T:
    """Run a reconciliation to its end; raise FencedError if another operator has taken over.

    `read` may answer from memory if that includes every write reported to `wrote`. After a refused transaction, which
    shows that the memory is outdated, the next read goes to the metastore.
    """
    answer: Any = None
    fresh = read is None
    while True:
        try:
            request = requests.send(answer)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        if isinstance(request, Read) and read is not None and not fresh:
            answer = await read(request.prefixes)
            continue
        answer = await _answer(request, metastore, epoch, wrote)
        fresh = isinstance(answer, TxnResult) and not answer.succeeded


async def _answer(request: Request, metastore: Metastore, epoch: Epoch, wrote: Wrote) -> Any:
    match request:
        case Read(prefixes):
            return await read_at_one_revision(metastore, prefixes)
        case Commit(txn):
            result = await metastore.txn(txn)
            wrote(result)
            if not result.succeeded:
                await _check_epoch(metastore, epoch)
            return result
        case Carry(run):
            return await carry(run, metastore, wrote=wrote)
        case Place():
            return await rebalance(
                request.table,
                mode=request.mode,  # type: ignore[arg-type]
                class_name=request.class_name,
                previous=request.previous,
                stores=request.stores,
                current=request.current,
                choices=request.choices,
                context=request.context,
            )


async def read_at_one_revision(metastore: Metastore, prefixes: tuple[str, ...]) -> Found:
    """Read everything under the prefixes at the revision of the first read."""
    first = await metastore.range(prefixes[0])
    others = await asyncio.gather(*(metastore.range(p, revision=first.revision) for p in prefixes[1:]))
    snapshots: list[Snapshot] = [first, *others]
    return Found(first.revision, {kv.key: kv for snapshot in snapshots for kv in snapshot.kvs})


async def carry(
    run: PlanRun, metastore: Metastore, *, in_flight: int = IN_FLIGHT, wrote: Wrote = lambda _: None
) -> None:
    """Run a plan's batches concurrently until all partitions have been handled."""
    tasks: dict[asyncio.Task[Any], Batch] = {}
    try:
        while True:
            while len(tasks) < in_flight and (batch := run.next_batch()) is not None:
                tasks[asyncio.ensure_future(metastore.txn(batch.txn))] = batch
                await asyncio.sleep(0)  # send it before the next batch is decided
            if not tasks:
                return
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                wrote(task.result())
                run.on_result(tasks.pop(task), task.result())
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _check_epoch(metastore: Metastore, epoch: Epoch) -> None:
    kv = await metastore.get(epoch.key)
    if kv is None or kv.mod_revision != epoch.mod_revision:
        raise FencedError(f"{epoch.key!r} is no longer held by {epoch.holder}; another operator has taken over")
