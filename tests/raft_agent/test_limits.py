"""Limits for copying, of tables and of stores, and thresholds: from the metastore to a running sidecar."""

from __future__ import annotations

import msgspec

from evenkeel.metastore.metastore_api import Delete, Put, Txn
from evenkeel.protocol.records import StoreSettings, TableRecord, TableState
from tests.protocol.support import KEYS
from tests.raft_agent.cluster import P0, Cluster
from tests.raft_agent.test_moves import ready

SLOW = StoreSettings(bytes_per_second=7.0, snapshots_at_once=1, degraded_after=2, stalled_seconds=5.0)


async def limit(cluster: Cluster, bytes_per_second: int | None, state: TableState = TableState.READY) -> None:
    record = TableRecord(partitions=1, replicas=1, consensus_size=1, state=state, bytes_per_second=bytes_per_second)
    await cluster.put(KEYS.table(P0.table), record)


async def test_a_limit_holds_as_soon_as_it_is_written() -> None:
    """On every store, with and without a replica; it changes with the record, and goes with it."""
    async with await ready("a b", "a") as cluster:
        for wanted in (5000, 70, None):
            await limit(cluster, wanted)
            expected = {} if wanted is None else {P0.table: wanted}
            await cluster.until(lambda e=expected: all(cluster[s].groups.limits == e for s in "ab"), seconds=1)  # type: ignore[misc]


async def test_a_limit_is_known_from_the_start() -> None:
    """A sidecar that begins keeps to the limits there are."""
    async with await ready("a b", "a") as cluster:
        await limit(cluster, 5000)
        await cluster["b"].kill()
        cluster["b"].start()
        await cluster.until(lambda: cluster["b"].groups.limits == {P0.table: 5000}, seconds=10)


async def test_a_record_that_cannot_be_read_has_no_limit() -> None:
    """It does not keep others from theirs."""
    async with await ready("a b", "a") as cluster:
        await cluster.metastore.txn(Txn(success=(Put(KEYS.table("broken.1"), b"{"),)))
        await limit(cluster, 5000)
        await cluster.until(lambda: cluster["b"].groups.limits == {P0.table: 5000}, seconds=1)


async def test_settings_of_stores_hold_as_soon_as_they_are_written() -> None:
    """On a running sidecar, throttles and thresholds alike; without the key the process's own hold again."""
    async with await ready("a b", "a") as cluster:
        tuning = cluster["b"].agent.tuning
        own = tuning.current
        await cluster.put(KEYS.settings, SLOW)
        await cluster.until(lambda: cluster["b"].groups.throttles == SLOW, seconds=1)
        assert (tuning.current.degraded_after, tuning.current.stalled_seconds) == (2, 5.0)
        await cluster.metastore.txn(Txn(success=(Delete(KEYS.settings),)))
        await cluster.until(lambda: cluster["b"].groups.throttles is None, seconds=1)
        assert tuning.current == own


async def test_settings_that_cannot_be_read_change_nothing() -> None:
    """What was known before stays in force."""
    async with await ready("a b", "a") as cluster:
        await cluster.put(KEYS.settings, SLOW)
        await cluster.until(lambda: cluster["b"].groups.throttles == SLOW, seconds=1)
        await cluster.metastore.txn(Txn(success=(Put(KEYS.settings, b"{"),)))
        await cluster.pass_time(1)
        assert cluster["b"].groups.throttles == SLOW


async def test_leaders_step_down_when_the_settings_say_so() -> None:
    """The threshold and the step-down are taken up by leaders that run already."""
    async with await ready("a b c d", "a b c") as cluster:
        cluster.network.held = {"d"}
        await cluster.put(KEYS.settings, msgspec.structs.replace(SLOW, step_down_when_stalled=True))
        await cluster.retarget("a b c d")
        counters = [store.agent.status().counters.transfers for store in cluster.stores.values()]
        await cluster.until(lambda: any(count["stalled"] for count in counters), seconds=25)
