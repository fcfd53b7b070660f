"""The number of concurrent snapshots is bounded."""

from __future__ import annotations

import asyncio

from evenkeel_raft.host.snapshot_slots import SnapshotSlots


async def hold(slots: SnapshotSlots, held: list[int], number: int, until: asyncio.Event) -> None:
    async with slots:
        held.append(number)
        await until.wait()
        held.remove(number)


async def turn() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_the_limit_can_rise_and_fall() -> None:
    """Raising the limit admits waiters immediately; lowering it interrupts nobody."""
    slots, held, done = SnapshotSlots(1), list[int](), [asyncio.Event() for _ in range(4)]
    tasks = [asyncio.create_task(hold(slots, held, number, done[number])) for number in range(4)]
    await turn()
    assert held == [0]
    slots.set_limit(3)
    await turn()
    assert held == [0, 1, 2]
    slots.set_limit(1)
    done[0].set()
    done[1].set()
    await turn()
    assert held == [2]
    done[2].set()
    done[3].set()
    await asyncio.gather(*tasks)
    assert held == []


async def test_a_cancelled_wait_keeps_no_slot() -> None:
    """A cancelled waiter holds no slot, even if it was assigned one at that moment."""
    slots, held, done = SnapshotSlots(1), list[int](), asyncio.Event()
    first, second, third = (asyncio.create_task(hold(slots, held, number, done)) for number in range(3))
    await turn()
    second.cancel()
    await turn()
    done.set()
    await asyncio.sleep(0)  # the first releases its slot, which is assigned to the third
    third.cancel()
    await asyncio.gather(first, second, third, return_exceptions=True)
    async with asyncio.timeout(1), slots:
        pass
