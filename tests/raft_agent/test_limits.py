"""Throttles of tables and stores, and thresholds: from the metastore to a running sidecar."""

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


async def test_a_limit_applies_at_once() -> None:
    """Every store applies the limit, with and without a replica; it follows the table's record."""
    async with await ready("a b", "a") as cluster:
        for wanted in (5000, 70, None):
            await limit(cluster, wanted)
            expected = {} if wanted is None else {P0.table: wanted}
            await cluster.until(lambda e=expected: all(cluster[s].groups.limits == e for s in "ab"), seconds=1)  # type: ignore[misc]


async def test_a_limit_is_known_from_the_start() -> None:
    """A starting sidecar applies the existing limits."""
    async with await ready("a b", "a") as cluster:
        await limit(cluster, 5000)
        await cluster["b"].kill()
        cluster["b"].start()
        await cluster.until(lambda: cluster["b"].groups.limits == {P0.table: 5000}, seconds=10)


async def test_a_malformed_record_has_no_limit() -> None:
    """A malformed record does not affect the limits of other tables."""
    async with await ready("a b", "a") as cluster:
        await cluster.metastore.txn(Txn(success=(Put(KEYS.table("broken.1"), b"{"),)))
        await limit(cluster, 5000)
        await cluster.until(lambda: cluster["b"].groups.limits == {P0.table: 5000}, seconds=1)


async def test_settings_apply_at_once() -> None:
    """A running sidecar applies throttles and thresholds; without the key, the process's own settings apply again."""
    async with await ready("a b", "a") as cluster:
        tuning = cluster["b"].agent.tuning
        own = tuning.current
        await cluster.put(KEYS.settings, SLOW)
        await cluster.until(lambda: cluster["b"].groups.throttles == SLOW, seconds=1)
        assert (tuning.current.degraded_after, tuning.current.stalled_seconds) == (2, 5.0)
        await cluster.metastore.txn(Txn(success=(Delete(KEYS.settings),)))
        await cluster.until(lambda: cluster["b"].groups.throttles is None, seconds=1)
        assert tuning.current == own


async def test_malformed_settings_change_nothing() -> None:
    """A malformed record leaves the previous settings in force."""
    async with await ready("a b", "a") as cluster:
        await cluster.put(KEYS.settings, SLOW)
        await cluster.until(lambda: cluster["b"].groups.throttles == SLOW, seconds=1)
        await cluster.metastore.txn(Txn(success=(Put(KEYS.settings, b"{"),)))
        await cluster.pass_time(1)
        assert cluster["b"].groups.throttles == SLOW


async def test_leaders_step_down_when_the_settings_say_so() -> None:
    """Running leaders apply the stall threshold and the step-down setting."""
    async with await ready("a b c d", "a b c") as cluster:
        cluster.network.held = {"d"}
        await cluster.put(KEYS.settings, msgspec.structs.replace(SLOW, step_down_when_stalled=True))
        await cluster.retarget("a b c d")
        counters = [store.agent.status().counters.transfers for store in cluster.stores.values()]
        await cluster.until(lambda: any(count["stalled"] for count in counters), seconds=25)
