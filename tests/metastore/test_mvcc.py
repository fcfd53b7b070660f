"""Mvcc beyond the conformance tests: clones, history and leases."""

from __future__ import annotations

import pytest

from evenkeel.errors import CompactedError, LeaseNotFoundError, RefusedError
from evenkeel.metastore.metastore_api import Compare, Delete, Event, KeyValue, Put, Txn, absent
from evenkeel.metastore.mvcc import Mvcc
from tests.metastore.support import delete, put


def test_empty_store_is_at_revision_one() -> None:
    """An empty store is at revision 1, as in etcd."""
    assert Mvcc().revision == 1
    assert Mvcc().range("").kvs == ()


def test_clones_are_independent() -> None:
    """A clone and its origin do not see each other's later changes."""
    origin = Mvcc()
    origin.txn(put("a", b"1"))
    lease = origin.grant_lease()
    clone = origin.clone()
    origin.txn(delete("a"))
    origin.revoke_lease(lease)
    clone.txn(put("b", b"2", lease=lease))
    assert [kv.key for kv in origin.range("").kvs] == []
    assert [kv.key for kv in clone.range("").kvs] == ["a", "b"]
    assert [kv.key for kv in clone.range("", 2).kvs] == ["a"]
    assert clone.grant_lease() == origin.grant_lease()


def test_changes_since_a_revision() -> None:
    """Changes are filtered by prefix, and exact."""
    store = Mvcc()
    store.txn(put("a/1", b"1"))
    store.txn(Txn(success=(Put("b/1", b"2"), Delete("a/1"))))
    kv = KeyValue("a/1", b"1", 2, 2, 1)
    assert store.changes("a/", 1) == [Event("a/1", kv, 2), Event("a/1", None, 3)]
    assert store.changes("a/", 2) == [Event("a/1", None, 3)]
    assert store.changes("", 3) == []


def test_compaction_removes_history() -> None:
    """A compacted revision can be neither read nor listed nor compacted again."""
    store = Mvcc()
    for value in (b"1", b"2", b"3"):
        store.txn(put("a", value))
    store.compact(3)
    assert store.range("", 3).kvs[0].value == b"2"
    assert [event.mod_revision for event in store.changes("", 3)] == [4]
    for forgotten in (lambda: store.range("", 2), lambda: store.changes("", 2), lambda: store.compact(3)):
        with pytest.raises(CompactedError) as caught:
            forgotten()
        assert caught.value.first_revision == 3
    with pytest.raises(RefusedError, match="future"):
        store.compact(5)


def test_without_history_only_the_present_is_known() -> None:
    """`keep_history=False` behaves as if every revision were compacted at once."""
    store = Mvcc(keep_history=False)
    store.txn(put("a", b"1"))
    assert store.range("", store.revision).kvs[0].value == b"1"
    assert store.changes("", store.revision) == []
    with pytest.raises(CompactedError):
        store.changes("", store.revision - 1)
    with pytest.raises(CompactedError):
        store.range("", store.revision - 1)
    with pytest.raises(CompactedError):
        store.clone().compact(store.revision)


def test_expired_lease_is_a_revoked_one() -> None:
    """`expire` deletes the lease's keys in one revision and the lease itself."""
    store = Mvcc()
    lease = store.grant_lease()
    store.txn(Txn(success=(Put("a", b"", lease), Put("b", b"", lease), Put("c", b""))))
    store.expire(lease)
    assert (store.revision, [kv.key for kv in store.range("").kvs]) == (3, ["c"])
    with pytest.raises(LeaseNotFoundError):
        store.expire(lease)


def test_lease_ids_are_unique() -> None:
    """A given lease id can be used once; generated ids avoid given ones."""
    store = Mvcc()
    assert store.grant_lease(1) == 1
    assert store.grant_lease() == 2
    with pytest.raises(RefusedError, match="exists"):
        store.grant_lease(2)


@pytest.mark.parametrize("compare", [Compare("a", "mod", "=", b"1"), Compare("a", "value", "=", 1)])
def test_operand_of_the_wrong_kind_is_refused(compare: Compare) -> None:
    """Comparing a number with bytes or a value with a number is refused."""
    with pytest.raises(RefusedError):
        Mvcc().txn(Txn((compare,)))


def test_refused_transaction_changes_nothing() -> None:
    """A refused transaction changes nothing."""
    store = Mvcc()
    for txn in (
        Txn(success=(Put("a", b""), Put("a", b""))),
        Txn(success=(Put("a", b""), Put("b", b"", lease=7))),
        Txn((absent("a"),), (Put("a", b""),), (Put("", b""),)),
    ):
        with pytest.raises((RefusedError, LeaseNotFoundError)):
            store.txn(txn)
    assert (store.revision, store.range("").kvs) == (1, ())
