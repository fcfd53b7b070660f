"""Rate limits on a virtual clock: respected, shared fairly, urgent bytes first."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from evenkeel.runtime.clock import VirtualClock
from evenkeel_raft.net.byte_budget import ByteBudget, TableBudgets

MIB = 1 << 20


class Background:
    """Takes portions as fast as the budget allows."""

    def __init__(self, budget: ByteBudget, size: int = MIB // 4) -> None:
        self.bytes = 0
        self._budget = budget
        self._size = size
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            await self._budget.take(self._size)
            self.bytes += self._size
            await asyncio.sleep(0)


async def pass_time(clock: VirtualClock, seconds: float, *, urgent: int = 0, budget: ByteBudget | None = None) -> None:
    """Advance time in steps of 10 ms with urgent bytes in each; all tasks run in between."""
    for _ in range(round(seconds * 100)):
        if budget is not None:
            budget.charge(urgent)
        clock.advance(0.01)
        for _ in range(8):
            await asyncio.sleep(0)


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


async def test_rate_is_kept(clock: VirtualClock) -> None:
    """Over ten seconds, the budget grants ten seconds' worth and a burst, and not much less."""
    budget = ByteBudget(10 * MIB, clock=clock)
    background = Background(budget)
    await pass_time(clock, 10)
    background.task.cancel()
    assert 98 * MIB <= background.bytes <= 102 * MIB


async def test_request_larger_than_the_bucket_passes(clock: VirtualClock) -> None:
    """A megabyte at 64 KiB per second takes sixteen seconds and does not wait for ever."""
    budget = ByteBudget(64 << 10, clock=clock)
    background = Background(budget, size=MIB)
    await pass_time(clock, 160)
    background.task.cancel()
    assert 9 * MIB <= background.bytes <= 12 * MIB


async def test_urgent_bytes_come_first(clock: VirtualClock) -> None:
    """Raft's bytes are deducted from the snapshots' exactly, and raft never waits."""
    budget = ByteBudget(10 * MIB, clock=clock)
    background = Background(budget)
    await pass_time(clock, 10, urgent=6 * MIB // 100, budget=budget)
    background.task.cancel()
    assert 38 * MIB <= background.bytes <= 42 * MIB


async def test_snapshots_never_starve(clock: VirtualClock) -> None:
    """When raft alone exceeds the budget, snapshots still get a tenth of it, and catch up afterwards."""
    budget = ByteBudget(10 * MIB, clock=clock)
    background = Background(budget)
    await pass_time(clock, 10, urgent=MIB, budget=budget)
    assert 9 * MIB <= background.bytes <= 12 * MIB
    before = background.bytes
    await pass_time(clock, 3)
    background.task.cancel()
    assert background.bytes - before >= 18 * MIB


async def test_requests_are_served_in_order(clock: VirtualClock) -> None:
    """Snapshots share the budget evenly; a cancelled one gives up its turn."""
    budget = ByteBudget(10 * MIB, clock=clock)
    one, two, three = Background(budget), Background(budget), Background(budget)
    await pass_time(clock, 3)
    assert max(one.bytes, two.bytes, three.bytes) - min(one.bytes, two.bytes, three.bytes) <= MIB // 4
    two.task.cancel()
    before = one.bytes, two.bytes, three.bytes
    await pass_time(clock, 3)
    assert two.bytes == before[1]
    assert (one.bytes - before[0] + three.bytes - before[2]) >= 29 * MIB
    for background in (one, three):
        background.task.cancel()


async def test_rate_changes_at_once(clock: VirtualClock) -> None:
    """A waiting request continues when the rate is raised or the limit removed."""
    budget = ByteBudget(1, clock=clock)
    await budget.take(MIB)
    await budget.take(MIB)
    waiting = [asyncio.create_task(budget.take(MIB)) for _ in range(3)]
    await pass_time(clock, 1)
    assert not any(task.done() for task in waiting)
    budget.set_rate(None)
    await asyncio.gather(*waiting)
    await budget.take(1 << 40)


async def test_a_table_keeps_to_its_own_limit(clock: VirtualClock) -> None:
    """A table stays within its limit, others share the rest, and all stay within the store's limit."""
    tables = TableBudgets(ByteBudget(10 * MIB, clock=clock), clock=clock)
    tables.set_limits({"slow": float(MIB)})
    taken: Counter[str] = Counter()

    async def copy(table: str) -> None:
        while True:
            await tables.take(table, MIB // 4)
            taken[table] += MIB // 4

    copying = [asyncio.create_task(copy(table)) for table in ("slow", "free")]
    await pass_time(clock, 10)
    assert 9 * MIB <= taken["slow"] <= 11 * MIB
    assert 86 * MIB <= taken["free"] <= 92 * MIB
    for task in copying:
        task.cancel()


async def test_limits_of_tables_change_at_once(clock: VirtualClock) -> None:
    """A waiting request continues when its table's limit is raised or removed; unchanged limits are kept."""
    tables = TableBudgets(ByteBudget(None, clock=clock), clock=clock)
    tables.set_limits({"a": 1.0, "b": 1.0})
    for table in "ab":
        await tables.take(table, MIB)
        await tables.take(table, MIB)
    waiting = {table: asyncio.create_task(tables.take(table, MIB)) for table in "ab"}
    tables.set_limits({"a": 1.0})
    await pass_time(clock, 1)
    assert (waiting["a"].done(), waiting["b"].done()) == (False, True)
    assert tables.limits == {"a": 1.0}
    tables.set_limits({"a": 100.0 * MIB})
    await pass_time(clock, 1)
    assert waiting["a"].done()
