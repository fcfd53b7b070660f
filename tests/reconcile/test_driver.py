"""The driver runs a plan's batches concurrently."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from evenkeel.driver import carry
from evenkeel.errors import FencedError
from evenkeel.metastore.metastore_api import Metastore, Put, Txn, TxnResult
from evenkeel.protocol.plan_run import Batch, PlanRun


class Run:
    """Batches that write one key each, and the order of their events."""

    def __init__(self, batches: int, *, fenced: bool = False) -> None:
        self.waiting = [Batch((at,), (), Txn(success=(Put(f"/{at}", b""),))) for at in reversed(range(batches))]
        self.fenced = fenced
        self.log: list[str] = []

    def next_batch(self) -> Batch | None:
        if not self.waiting:
            return None
        self.log.append(f"decide {self.waiting[-1].partitions[0]}")
        return self.waiting.pop()

    def on_result(self, batch: Batch, _: TxnResult) -> None:
        if self.fenced:
            raise FencedError("somebody else")
        self.log.append(f"done {batch.partitions[0]}")


class Slow:
    """A metastore that answers in a given order."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.answers: dict[str, asyncio.Future[TxnResult]] = {}

    async def txn(self, txn: Txn) -> TxnResult:
        (op,) = txn.success
        self.run.log.append(f"send {op.key[1:]}")
        self.answers[op.key[1:]] = asyncio.get_running_loop().create_future()
        return await self.answers[op.key[1:]]

    async def answer(self, key: str) -> None:
        self.answers[key].set_result(TxnResult(True, 1, ()))
        await _until_all_wait()


async def _until_all_wait() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def _begin(run: Run, *, in_flight: int = 3) -> tuple[Slow, asyncio.Task[None]]:
    slow = Slow(run)
    task = asyncio.create_task(carry(cast("PlanRun", run), cast("Metastore", cast("Any", slow)), in_flight=in_flight))
    await _until_all_wait()
    return slow, task


async def test_a_batch_is_sent_before_the_next_is_decided() -> None:
    """A batch is sent before the next one is made."""
    run = Run(3)
    slow, task = await _begin(run)
    assert run.log == ["decide 0", "send 0", "decide 1", "send 1", "decide 2", "send 2"]
    for key in "012":
        await slow.answer(key)
    await task


async def test_no_more_than_so_many_at_once() -> None:
    """A further batch is decided when any other has ended; the run ends with the last one."""
    run = Run(4)
    slow, task = await _begin(run, in_flight=2)
    assert sorted(slow.answers) == ["0", "1"]
    await slow.answer("1")
    assert run.log[-3:] == ["done 1", "decide 2", "send 2"]
    await slow.answer("0")
    await slow.answer("3")
    assert not task.done()
    await slow.answer("2")
    await task
    assert run.log[-2:] == ["done 3", "done 2"]


async def test_a_fenced_run_leaves_nothing_under_way() -> None:
    """After FencedError the driver waits for no further answer."""
    run = Run(3, fenced=True)
    slow, task = await _begin(run)
    await slow.answer("1")
    with pytest.raises(FencedError):
        await task
    assert slow.answers["0"].cancelled()
    assert slow.answers["2"].cancelled()
