"""Limits of tables for copying, from their records to raft."""

from __future__ import annotations

from evenkeel.metastore.api import Put, Txn
from evenkeel.protocol.records import TableRecord, TableState
from tests.protocol.support import KEYS
from tests.raft_agent.cluster import P0, Cluster
from tests.raft_agent.test_moves import ready


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
