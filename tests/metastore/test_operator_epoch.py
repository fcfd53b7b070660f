"""Fencing by the epoch, on every metastore."""

from __future__ import annotations

import pytest

from evenkeel.errors import FencedError
from evenkeel.metastore.metastore_api import MAX_TXN_OPS, Get, Put, Txn, absent
from evenkeel.metastore.operator_epoch import FencedMetastore, acquire_epoch
from tests.metastore.support import Subject, delete, events_until, put, shown


async def test_holder_writes(subject: Subject, prefix: str) -> None:
    """The operator that took the epoch last can write, and gets results as without a fence."""
    epoch = await acquire_epoch(subject.store, prefix + "epoch", "one")
    store = FencedMetastore(subject.store, epoch)
    taken = Txn((absent(prefix + "a"),), (Put(prefix + "a", b"1"),), (Get(prefix + "a"),))
    assert (await store.txn(taken)).succeeded
    refused = await store.txn(taken)
    assert not refused.succeeded
    assert [len(result.kvs) for result in refused.results] == [1]


async def test_predecessor_is_fenced(subject: Subject, prefix: str) -> None:
    """Once a successor took the epoch, its predecessor's writes fail with FencedError."""
    first = await acquire_epoch(subject.store, prefix + "epoch", "one")
    second = await acquire_epoch(subject.store, prefix + "epoch", "two")
    assert first.mod_revision < second.mod_revision
    with pytest.raises(FencedError, match=r"'one' no longer holds .*two"):
        await FencedMetastore(subject.store, first).txn(put(prefix + "a"))
    assert await subject.store.get(prefix + "a") is None
    assert (await FencedMetastore(subject.store, second).txn(put(prefix + "a"))).succeeded


async def test_a_restarted_holder_is_fenced(subject: Subject, prefix: str) -> None:
    """A restarted operator has a new epoch, and late writes of its former process fail."""
    before = await acquire_epoch(subject.store, prefix + "epoch", "one")
    await acquire_epoch(subject.store, prefix + "epoch", "one")
    with pytest.raises(FencedError):
        await FencedMetastore(subject.store, before).txn(put(prefix + "a"))


async def test_a_deleted_epoch_fences_all_operators(subject: Subject, prefix: str) -> None:
    """If the epoch key is deleted, writes fail."""
    epoch = await acquire_epoch(subject.store, prefix + "epoch", "one")
    await subject.store.txn(delete(prefix + "epoch"))
    with pytest.raises(FencedError, match="deleted"):
        await FencedMetastore(subject.store, epoch).txn(put(prefix + "a"))


async def test_room_for_the_fence(subject: Subject, prefix: str) -> None:
    """A transaction of 127 comparisons, 128 operations and 127 reads on failure still fits with its fence."""
    epoch = await acquire_epoch(subject.store, prefix + "epoch", "one")
    keys = [f"{prefix}{number}" for number in range(MAX_TXN_OPS)]
    txn = Txn(
        tuple(absent(key) for key in keys[1:]),
        tuple(Put(key, b"") for key in keys),
        tuple(Get(key) for key in keys[1:]),
    )
    store = FencedMetastore(subject.store, epoch)
    assert (await store.txn(txn)).succeeded
    assert len((await store.txn(txn)).results) == MAX_TXN_OPS - 1


async def test_other_calls_are_not_fenced(subject: Subject, prefix: str) -> None:
    """Reads, watches and leases need no epoch, so a fenced operator can still read."""
    epoch = await acquire_epoch(subject.store, prefix + "epoch", "one")
    await acquire_epoch(subject.store, prefix + "epoch", "two")
    store = FencedMetastore(subject.store, epoch)
    snapshot = await store.range(prefix)
    assert await store.get(prefix + "epoch") == snapshot.kvs[0]
    assert await store.cluster_id() == await subject.store.cluster_id()
    watch = store.watch(prefix, after=snapshot)
    await subject.store.txn(put(prefix + "a", b"1"))
    assert shown(await events_until(watch, lambda _: True)) == [("a", b"1")]
    await (await store.lease(60)).revoke()
