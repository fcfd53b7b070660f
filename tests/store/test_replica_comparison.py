"""Replicas whose rows differ from the leader's are found and reported."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from evenkeel.errors import NotLeaderError
from evenkeel_store.engine.log_entries import Compare, Hash, encode_entry
from evenkeel_store.maintenance.peer_stores import Credentials, PeerStoreClient
from evenkeel_store.maintenance.replica_comparison import ReplicaComparer
from evenkeel_store.maintenance.replica_repair import ReplicaRepairer
from evenkeel_store.state_machine import background_tasks
from tests.store.serving import ORDERS, Store, table_record
from tests.store.support import GROUP, columns, upsert
from tests.store.test_store_state_machine import SidecarStub, start
from tests.wire.support import wait_until

__all__ = ["start"]

START = Callable[..., SidecarStub]


def repairer(store: Store) -> ReplicaRepairer:
    return ReplicaRepairer(store.service, PeerStoreClient(Credentials()), clock=store.clock)


async def compared(store: SidecarStub, times: int) -> None:
    await wait_until(lambda: store.state_machine.counters["comparisons"] >= times)


async def test_replica_with_other_rows(start: START, caplog: pytest.LogCaptureFixture) -> None:
    """It reports the difference in its log and status, until its rows are the same again."""
    one, two = start("one"), start("two")
    await asyncio.gather(one.open(), two.open())
    await one.apply(1, columns(), upsert([{"id": 1, "name": "a"}]), encode_entry(Hash()))
    await two.apply(1, columns(), upsert([{"id": 1, "name": "b"}]), encode_entry(Hash()))
    taken = await one.state_machine.until_hashed(GROUP, 3)
    with caplog.at_level(logging.ERROR):
        for store in (one, two):
            await store.apply(4, encode_entry(Compare(3, taken)))
            await compared(store, 1)
    assert one.state_machine.engine.groups[GROUP].differs == ""
    assert f"and the leader's is {taken}" in two.state_machine.engine.groups[GROUP].differs
    [line] = [record for record in caplog.records if "rows differ from the leader's" in record.getMessage()]
    assert (vars(line)["table"], vars(line)["partition"]) == ("orders", 7)
    for store in (one, two):
        await store.apply(5, upsert([{"id": 1, "name": "c"}]), encode_entry(Hash()))
    again = await one.state_machine.until_hashed(GROUP, 6)
    await two.apply(7, encode_entry(Compare(6, again)))
    await compared(two, 2)
    assert two.state_machine.engine.groups[GROUP].differs == ""


async def test_barrier_and_comparison_at_once(start: START) -> None:
    """A replica that applies both at once takes its hash first."""
    one, two = start("one"), start("two")
    await asyncio.gather(one.open(), two.open())
    await one.apply(1, columns(), encode_entry(Hash()))
    taken = await one.state_machine.until_hashed(GROUP, 2)
    await two.apply(1, columns(), encode_entry(Hash()), encode_entry(Compare(2, taken)))
    await compared(two, 1)
    assert two.state_machine.engine.groups[GROUP].differs == ""


async def test_hash_that_cannot_be_taken(start: START, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed hash releases those who wait for it; otherwise they would block the store's stop forever."""

    def fail(*_: object, **__: object) -> str:
        raise OSError("a disk that nobody foresaw")

    monkeypatch.setattr(background_tasks, "state_hash", fail)
    one = start("one")
    await one.open()
    await one.apply(1, columns(), encode_entry(Hash()), encode_entry(Compare(2, "leaders")))
    assert await asyncio.wait_for(one.state_machine.until_hashed(GROUP, 2), 20) == ""


async def test_barrier_from_before_a_replica_was_here(start: START) -> None:
    """A replica that took no hash at a barrier compares nothing and waits for nothing."""
    store = start()
    await store.open()
    await store.apply(1, columns(), encode_entry(Compare(1, "0:0")), encode_entry(Hash()))
    taken = await store.state_machine.until_hashed(GROUP, 3)
    await store.apply(4, encode_entry(Compare(3, taken)))
    await compared(store, 1)
    assert store.state_machine.engine.groups[GROUP].differs == ""


async def test_leaders_compare_what_has_changed(tmp_path: Path) -> None:
    """A partition is compared after its interval, only if it has changed, and one partition per pass."""
    async with Store(tmp_path / "store") as store:
        await store.table(table_record(ORDERS, partitions=2), partitions=(0, 1))
        comparer = ReplicaComparer(store.service, repairer(store), seconds=100, clock=store.clock)

        async def logged() -> list[int]:
            before = [group.last for group in store.sidecar.groups.values()]
            await comparer.compare_next()
            await store.settled()
            return [group.last - last for group, last in zip(store.sidecar.groups.values(), before, strict=True)]

        assert await logged() == [0, 0], "their interval has just begun"
        store.clock.advance(100)
        assert await logged() == [2, 0]
        assert await logged() == [0, 2]
        store.clock.advance(100)
        assert await logged() == [0, 0], "nothing was written"
        [_, second] = store.sidecar.groups.values()
        group = store.state_machine.engine.groups[second.number]
        await store.service.propose(group, upsert([{"id": 1}]))
        await store.settled()
        store.clock.advance(100)
        assert await logged() == [0, 2]


async def test_follower_compares_nothing(tmp_path: Path) -> None:
    """Only the leader compares; a store that has just lost the leadership does not."""
    async with Store(tmp_path / "store") as store:
        await store.table(table_record(ORDERS))
        comparer = ReplicaComparer(store.service, repairer(store), seconds=100, clock=store.clock)
        await comparer.compare_next()
        store.clock.advance(100)
        [group] = store.sidecar.groups.values()
        group.leading = False
        before = group.last
        await comparer.compare_next()
        with pytest.raises(NotLeaderError):
            await store.service.take_hash(store.state_machine.engine.groups[group.number])
        assert group.last == before
