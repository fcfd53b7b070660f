"""Encoded requests, where etcd itself does not show the difference."""

from __future__ import annotations

from aetcd import rpc

from evenkeel.metastore._etcd_codec import decode_kv, encode_txn, prefix_bounds, writes
from evenkeel.metastore.metastore_api import Compare, Delete, Get, KeyValue, Put, Txn, absent


def test_transaction_without_operations_reads() -> None:
    """A transaction of comparisons only gets a read, which makes it linearizable."""
    request = encode_txn(Txn((absent("a"),)))
    assert len(request.success) == len(request.failure) == 1
    assert not request.success[0].request_range.serializable


def test_reads_are_linearizable() -> None:
    """All reads are linearizable."""
    request = encode_txn(Txn(success=(Get("a"), Get("b", prefix=True))))
    assert not any(op.request_range.serializable for op in request.success)


def test_only_puts_and_deletes_write() -> None:
    """A transaction that changes nothing may be sent twice."""
    assert not writes(Txn((absent("a"),), (Get("a"),), (Get("b"),)))
    assert writes(Txn(success=(Get("a"), Put("a", b""))))
    assert writes(Txn(failure=(Delete("a"),)))


def test_all_fields_compare() -> None:
    """Each field is encoded with its own operand, also if it is zero."""
    compares = (
        Compare("k", "mod", "=", 0),
        Compare("k", "create", "<", 2),
        Compare("k", "version", ">", 3),
        Compare("k", "value", "!=", b"v"),
    )
    encoded = encode_txn(Txn(compares)).compare
    assert [part.WhichOneof("target_union") for part in encoded] == [
        "mod_revision",
        "create_revision",
        "version",
        "value",
    ]


def test_prefix_of_everything() -> None:
    """The empty prefix covers all text keys, and a longer one ends right after its last key."""
    assert prefix_bounds("") == (b"\0", b"\xff")
    assert prefix_bounds("a/") == (b"a/", b"a0")


def test_foreign_keys_that_are_not_utf8() -> None:
    """A key that is not UTF-8 is listed and can be used again."""
    kv = decode_kv(rpc.KeyValue(key=b"a/\xfe", value=b"v", mod_revision=3, create_revision=2, version=1))
    assert kv == KeyValue("a/\udcfe", b"v", 3, 2, 1)
    assert encode_txn(Txn(success=(Delete(kv.key),))).success[0].request_delete_range.key == b"a/\xfe"
