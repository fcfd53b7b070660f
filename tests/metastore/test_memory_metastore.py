"""The in-memory metastore's leases on a virtual clock, and `keep_alive`."""

from __future__ import annotations

import asyncio

import pytest

from evenkeel.errors import LeaseNotFoundError, UnreachableError
from evenkeel.metastore.leases import keep_alive
from evenkeel.metastore.memory_metastore import MemoryMetastore
from evenkeel.runtime.clock import VirtualClock
from tests.metastore.support import events_until, put, shown


async def test_lease_expires_by_the_clock() -> None:
    """A lease that is not refreshed deletes its keys when it expires, and not before."""
    clock = VirtualClock()
    async with MemoryMetastore(clock=clock) as store:
        lease = await store.lease(10)
        await store.txn(put("a", b"", lease=lease.id))
        clock.advance(9.9)
        assert await store.get("a") is not None
        clock.advance(0.1)
        assert await store.get("a") is None
        assert not await lease.refresh()


async def test_refresh_restarts_the_time_to_live() -> None:
    """Each refresh restarts the full time to live."""
    clock = VirtualClock()
    async with MemoryMetastore(clock=clock) as store:
        lease = await store.lease(10)
        for _ in range(5):
            clock.advance(9)
            assert await lease.refresh()
        clock.advance(10)
        assert not await lease.refresh()


async def test_expiry_wakes_watches() -> None:
    """A watch delivers the deletions of an expired lease."""
    clock = VirtualClock()
    async with MemoryMetastore(clock=clock) as store:
        lease = await store.lease(10)
        await store.txn(put("a", b"", lease=lease.id))
        watch = store.watch("", after=await store.range(""))
        following = asyncio.create_task(events_until(watch, lambda event: event.kv is None))
        clock.advance(10)
        assert shown(await following) == [("a", None)]


async def test_system_clock_ends_leases_too() -> None:
    """Without a given clock, leases expire by the event loop's time."""
    async with MemoryMetastore() as store:
        lease = await store.lease(0.01)
        await store.txn(put("a", b"", lease=lease.id))
        watch = store.watch("", after=await store.range(""))
        assert shown(await events_until(watch, lambda event: event.kv is None)) == [("a", None)]


async def test_keep_alive_keeps_a_lease() -> None:
    """A lease lives while it is kept alive, and expires afterwards."""
    clock = VirtualClock()
    async with MemoryMetastore(clock=clock) as store:
        lease = await store.lease(9)
        await store.txn(put("a", b"", lease=lease.id))
        keeping = asyncio.create_task(keep_alive(lease, clock=clock))
        for _ in range(20):
            await _let_others_run()
            clock.advance(3)
        await _let_others_run()
        assert await store.get("a") is not None
        keeping.cancel()
        clock.advance(9)
        assert await store.get("a") is None


async def test_keep_alive_raises_if_a_lease_is_lost() -> None:
    """If a lease is revoked, its keep-alive raises an error."""
    clock = VirtualClock()
    async with MemoryMetastore(clock=clock) as store:
        lease = await store.lease(9)
        await lease.revoke()
        with pytest.raises(LeaseNotFoundError, match="lost"):
            await keep_alive(lease, clock=clock)


class UnreachableLease:
    """A lease whose metastore answers a few times and then never again."""

    id = 1
    ttl = 9.0

    def __init__(self, *, answers: int) -> None:
        self.answers = answers
        self.asked = 0

    async def refresh(self) -> bool:
        self.asked += 1
        if self.asked > self.answers:
            raise UnreachableError("gone")
        return True

    async def revoke(self) -> None:
        """Do nothing."""


async def test_keep_alive_gives_up_after_one_time_to_live() -> None:
    """Refreshes to an unreachable metastore are retried until the lease must be considered lost."""
    clock = VirtualClock()
    lease = UnreachableLease(answers=2)
    keeping = asyncio.create_task(keep_alive(lease, clock=clock))
    while not keeping.done():
        await _let_others_run()
        clock.advance(1)
    with pytest.raises(LeaseNotFoundError):
        await keeping
    last_answer = 3.0
    assert last_answer + lease.ttl <= clock.now() <= last_answer + lease.ttl + 2
    assert lease.asked > 3


async def _let_others_run() -> None:
    for _ in range(5):
        await asyncio.sleep(0)
