"""Malformed metastore keys: an agent reports them where they matter and continues with the rest."""

from __future__ import annotations

import pytest

from evenkeel.metastore.metastore_api import Delete, Put, Txn
from evenkeel.protocol.records import StoreRecord, encode
from tests.protocol.support import KEYS
from tests.raft_agent.cluster import P0, TABLE, Cluster
from tests.raft_agent.test_moves import ready

MALFORMED = {
    "nothing": b"",
    "no JSON": b"{",
    "no UTF-8": b'{"volume":"\xff","waiting":[["\xff"]],"store":"\xff","pod":"\xff","retarget":"\xff",'
    b'"peers":[{"store":"\xff"}],"queue":[[{"store":"\xff"}]]}',
    "too deep": b'{"x":' + b"[" * 100_000,
    "another shape": b'{"peers":7,"queue":[],"waiting":1,"store":[],"token":"x","volume":3}',
    "no address": encode(StoreRecord(volume="v", address="10.0.0.9:99999")),
}
PLACES = (
    *KEYS.partition(TABLE, 7).all(),
    *(KEYS.table("other.1"), KEYS.tombstone("gone.1"), KEYS.store("x"), KEYS.store_state("x")),
    *(
        KEYS.leader(TABLE, 0),
        KEYS.leader_target(TABLE, 0),
        KEYS.leader_target("other.1", 3),
        KEYS.inhibition("a"),
    ),
    *(f"{KEYS.root}partition.assignments.stable/{TABLE}/1e9", f"{KEYS.root}tables/", f"{KEYS.root}stores.x/y/z"),
)


@pytest.mark.parametrize("what", MALFORMED)
async def test_malformed_keys_stop_no_agent(what: str) -> None:
    """Agents survive malformed keys of every kind and carry out the valid ones."""
    async with await ready("a b c d", "a b c") as cluster:
        for key in PLACES:
            await cluster.metastore.txn(Txn(success=(Put(key, MALFORMED[what]),)))
        await cluster.retarget("a b d")
        await cluster.until(lambda: cluster.settled("a b d"))


@pytest.mark.parametrize("what", MALFORMED)
async def test_malformed_keys_of_a_partition_are_its_problem(what: str) -> None:
    """A partition with malformed keys is left alone and has a problem; once corrected, it continues."""
    async with await ready("a b c", "a b c") as cluster:
        own = KEYS.partition(*P0)
        await cluster.metastore.txn(Txn(success=(Put(own.pending, MALFORMED[what]),)))
        await cluster.pass_time(40)
        assert cluster.holders() == {"a", "b", "c"}
        assert own.pending in cluster["a"].agent.status().problems[P0]
        await cluster.metastore.txn(Txn(success=(Delete(own.pending),)))
        await cluster.until(lambda: not cluster["a"].agent.status().problems)


async def test_a_store_with_an_invalid_address_is_reported() -> None:
    """Raft does not get an invalid address, and status reports it."""
    async with Cluster("a b") as cluster:
        await cluster.started()
        await cluster.put(KEYS.store("x"), StoreRecord(volume="v", address="10.0.0.9:99999"))
        await cluster.pass_time(1)
        assert "99999" in cluster["a"].agent.status().peers["x"]
        assert "x" not in cluster["a"].groups.peers
