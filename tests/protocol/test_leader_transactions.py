"""The leader's transactions: what they write, and that each fails if a key it depends on has changed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from evenkeel.metastore.metastore_api import Compare, Delete, Put, Txn
from evenkeel.metastore.mvcc import Mvcc
from evenkeel.protocol.leader_transactions import lock_txn, may_unlock, promote_txn, switch_txn, unlock_txn
from evenkeel.protocol.partition_view import PartitionView
from evenkeel.protocol.records import Lock, TableRecord, TableState
from tests.protocol.support import KEYS, PARTITION, TABLE, holds, peers, put, read, shown, shown_queue, stored

RECORD = TableRecord(partitions=1, replicas=3, consensus_size=3, state=TableState.READY)
TABLE_KEY = KEYS.table(TABLE)
Make = Callable[[PartitionView, Compare], Txn]


def lock(view: PartitionView, table: Compare) -> Txn:
    return lock_txn(view, keys=PARTITION, term=4, table=table)


def unlock(view: PartitionView, table: Compare) -> Txn:
    return unlock_txn(view, keys=PARTITION, table=table)


def switch(view: PartitionView, table: Compare, applied: str = "a1 b1 c2") -> Txn:
    return switch_txn(view, peers(applied), keys=PARTITION, token=view.pending_mod, table=table)


def promote(view: PartitionView, table: Compare) -> Txn:
    return promote_txn(view, keys=PARTITION, table=table)


def full(*, locked: bool) -> tuple[Mvcc, Compare]:
    """Return a partition with all keys, optionally with a lock, and its table's record."""
    store = stored(
        stable="a1 b1", pending="a1 b1 c2", planned="a1 d3", trigger=3, lock_term=2 if locked else None, genesis=True
    )
    return store, holds(put(store, TABLE_KEY, RECORD))


COMPARED: dict[Make, set[str]] = {
    lock: {TABLE_KEY, PARTITION.pending, PARTITION.lock},
    unlock: {TABLE_KEY, PARTITION.lock},
    switch: {TABLE_KEY, PARTITION.pending, PARTITION.stable, PARTITION.planned},
    promote: {TABLE_KEY, PARTITION.pending, PARTITION.stable, PARTITION.planned, PARTITION.lock},
}
EVERY_KEY = (TABLE_KEY, *PARTITION.all())


@pytest.mark.parametrize("change", ["rewritten", "removed"])
@pytest.mark.parametrize("key", EVERY_KEY)
@pytest.mark.parametrize("make", COMPARED)
def test_fails_if_a_compared_key_has_changed(make: Make, key: str, change: str) -> None:
    """Each transaction compares exactly the keys it depends on; a failed one changes nothing and returns the keys."""
    store, table = full(locked=make is not promote)
    txn = make(read(store), table)
    if (kv := store.get(key)) is None:
        put(store, key, Lock(token=1, term=1))
    else:
        store.txn(Txn(success=(Delete(key) if change == "removed" else Put(key, kv.value),)))
    before = store.range(KEYS.root)
    result = store.txn(txn)
    assert result.succeeded == (key not in COMPARED[make])
    if not result.succeeded:
        assert store.range(KEYS.root) == before
        found = [kv for op in result.results for kv in op.kvs]
        assert found == [kv for name in PARTITION.all() for kv in before.kvs if kv.key == name]


@pytest.mark.parametrize("make", COMPARED)
def test_a_transaction_of_unknown_outcome_succeeds_once(make: Make) -> None:
    """A transaction that is sent again after it succeeded fails."""
    store, table = full(locked=make is not promote)
    txn = make(read(store), table)
    assert store.txn(txn).succeeded
    assert not store.txn(txn).succeeded


@pytest.mark.parametrize("locked", [False, True])
def test_lock(locked: bool) -> None:
    """A leader locks with pending's revision and its own term, also over another lock; nothing else changes."""
    store, table = full(locked=locked)
    before = read(store)
    assert store.txn(lock(before, table)).succeeded
    after = read(store)
    assert after.lock == Lock(token=before.pending_mod, term=4)
    assert after.lock_mod > before.lock_mod
    assert after.mods()[:4] == before.mods()[:4]


def test_a_new_lock_makes_earlier_transactions_fail() -> None:
    """After a new lock, an earlier lock or unlock of the same leader fails."""
    store, table = full(locked=True)
    view = read(store)
    late = (lock(view, table), unlock(view, table))
    assert store.txn(lock(view, table)).succeeded
    assert not any(store.txn(txn).succeeded for txn in late)


def test_unlock() -> None:
    """An unlock removes only the lock."""
    store, table = full(locked=True)
    before = read(store)
    assert store.txn(unlock(before, table)).succeeded
    after = read(store)
    assert after.lock is None
    assert after.mods()[:4] == before.mods()[:4]


@pytest.mark.parametrize(
    ("lock_term", "term", "committed", "outstanding", "joint", "newest_token", "allowed"),
    [
        (3, 3, True, False, False, 5, True),
        (2, 3, True, False, False, 5, True),
        (4, 3, True, False, False, 5, False),
        (3, 3, False, False, False, 5, False),
        (3, 3, True, True, False, 5, False),
        (3, 3, True, False, True, 5, False),
        (3, 3, True, False, False, 9, False),
    ],
)
def test_when_a_lock_may_be_deleted(
    *,
    lock_term: int,
    term: int,
    committed: bool,
    outstanding: bool,
    joint: bool,
    newest_token: int,
    allowed: bool,
) -> None:
    """Each condition alone forbids the unlock."""
    found = may_unlock(
        Lock(token=9, term=lock_term),
        term=term,
        committed_in_term=committed,
        final_outstanding=outstanding,
        in_joint=joint,
        newest_token=newest_token,
    )
    assert found is allowed


@pytest.mark.parametrize(
    ("pending", "planned", "applied", "then"),
    [
        ("a1 b1 c2", None, "a1 b1 c2", None),
        ("a1 b1 c2* | a1 c2", None, "a1 b1 c2*", "a1 c2"),
        ("a1 b1 c2", "a1 b1 d3", "a1 b1 c2", "a1 b1 d3"),
        ("a1 b1 c2", "a1 b1 c2", "a1 b1 c2", None),
        ("a1 b1 c2* | a1 c2", "a1 b1 c2*", "a1 b1 c2*", None),
        ("a1 b1 c2* | a1 c2", "a1 b7 d3", "a1 b1 c2*", "a1 b1 d3"),
        ("a1 b1 c2", "d3 e3 f3", "a1 b1 c2", "a1 b1 c2 d3* e3* | d3 e3 f3"),
        ("a1 b1 c2", "b3 c2", "c2 b1 a1", "b1 c2"),
    ],
)
def test_switch(pending: str, planned: str | None, applied: str, then: str | None) -> None:
    """A switch records what raft runs; planned or the rest of the queue follows; lock and genesis are removed."""
    store = stored(stable="a1 b1", pending=pending, planned=planned, lock_term=2, genesis=True, trigger=3)
    table = holds(put(store, TABLE_KEY, RECORD))
    assert store.txn(switch(read(store), table, applied)).succeeded
    after = read(store)
    assert after.stable is not None
    assert shown(after.stable.peers) == " ".join(sorted(applied.split()))
    assert not after.stable.genesis
    assert shown_queue(after.pending) == then
    assert after.planned is None
    assert after.lock is None
    assert after.trigger == 3


def test_a_paused_leaders_switch_fails() -> None:
    """A switch with the token of a replaced pending fails, even after the keys were read again."""
    store = stored(stable="a1 b1", pending="a1 b1 c2", lock_term=2)
    table = holds(put(store, TABLE_KEY, RECORD))
    token = read(store).pending_mod
    put(store, PARTITION.pending, {"queue": [peers("a1 b1 d3")]})
    late = switch_txn(read(store), peers("a1 b1 c2"), keys=PARTITION, token=token, table=table)
    assert not store.txn(late).succeeded


@pytest.mark.parametrize(
    ("stable", "pending", "planned", "then"),
    [
        ("a1 b1 c1", "a1 b1 d2", "a1 b1 e3", "a1 b1 e3"),
        ("a1 b1 c1", "a1 b1 d2", "a1 b1 d2*", "a1 b1 d2*"),
        ("a1 b1", "a1 c2", "a1 b5", None),
        ("a1", "a1 b2* | a1 b2", "a1 c3", "a1 c3* | a1 c3"),
        ("a1", None, "a1 c3*", "a1 c3*"),
    ],
)
def test_promote(stable: str, pending: str | None, planned: str, then: str | None) -> None:
    """Planned becomes pending in steps from stable, with stable's ids; if it equals stable, pending is removed."""
    store = stored(stable=stable, pending=pending, planned=planned, trigger=3)
    table = holds(put(store, TABLE_KEY, RECORD))
    before = read(store)
    assert store.txn(promote(before, table)).succeeded
    after = read(store)
    assert shown_queue(after.pending) == then
    assert after.planned is None
    assert (after.stable, after.trigger) == (before.stable, 3)


def test_of_lock_and_promotion_one_fails() -> None:
    """Of a lock and a promotion, the first one makes the other fail."""
    for first, second in ((lock, promote), (promote, lock)):
        store, table = full(locked=False)
        view = read(store)
        assert store.txn(first(view, table)).succeeded
        assert not store.txn(second(view, table)).succeeded
