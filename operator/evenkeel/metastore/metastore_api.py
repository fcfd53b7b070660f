"""The interface of a metastore and its data types: a small, exact subset of etcd v3.

Keys are text, values are bytes, and a revision counts the changes of the whole store. A `Txn` is atomic: if all
comparisons hold, `success` runs, otherwise `failure`. A `mod_revision` of 0 means "absent", so a transaction can
require that a key does not exist.

The types are plain data without IO, so the protocol can build transactions and the simulations can run them.
`etcd_metastore` and `memory_metastore` implement `Metastore`; both pass the same conformance tests.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Literal, Protocol

import msgspec

__all__ = [
    "MAX_TXN_OPS",
    "Compare",
    "Delete",
    "Event",
    "Get",
    "KeyValue",
    "Lease",
    "Metastore",
    "Op",
    "OpResult",
    "Put",
    "Snapshot",
    "Txn",
    "TxnResult",
    "WatchBatch",
    "absent",
    "unchanged",
]

MAX_TXN_OPS = 128
"""Etcd's default `--max-txn-ops`: a limit for comparisons, success and failure operations, each separately."""


class KeyValue(msgspec.Struct, frozen=True, gc=False):
    """One key as stored at one revision."""

    key: str
    value: bytes
    mod_revision: int
    create_revision: int
    version: int
    lease: int = 0


class Compare(msgspec.Struct, frozen=True, gc=False):
    """`<field of key> <op> <operand>`; an absent key has mod, create and version 0 and no value.

    With `end`, it must hold for each existing key from `key` up to but not including `end`, or for an absent key if
    none exists. `mod < revision + 1` over a range checks in one comparison that no key was written since `revision`.
    """

    key: str
    field: Literal["mod", "create", "version", "value"]
    op: Literal["=", "!=", "<", ">"]
    operand: int | bytes
    end: str = ""


class Put(msgspec.Struct, frozen=True, gc=False):
    """Write one key, bound to a lease if `lease` is not 0."""

    key: str
    value: bytes
    lease: int = 0


class Delete(msgspec.Struct, frozen=True, gc=False):
    """Remove one key, or with `prefix=True` all keys that start with it."""

    key: str
    prefix: bool = False


class Get(msgspec.Struct, frozen=True, gc=False):
    """Read one key, or with `prefix=True` all keys that start with it."""

    key: str
    prefix: bool = False


Op = Put | Delete | Get


class Txn(msgspec.Struct, frozen=True):
    """An atomic transaction: if all comparisons hold, run `success`, else run `failure`."""

    compares: tuple[Compare, ...] = ()
    success: tuple[Op, ...] = ()
    failure: tuple[Op, ...] = ()


class OpResult(msgspec.Struct, frozen=True, gc=False):
    """The result of one operation: what a Get found, how many keys a Delete removed."""

    kvs: tuple[KeyValue, ...] = ()
    deleted: int = 0


class TxnResult(msgspec.Struct, frozen=True):
    """The results of the branch that ran, in order, and the store's revision after the transaction."""

    succeeded: bool
    revision: int
    results: tuple[OpResult, ...]


class Snapshot(msgspec.Struct, frozen=True):
    """All keys under a prefix at one revision, in key order."""

    prefix: str
    revision: int
    kvs: tuple[KeyValue, ...]


class Event(msgspec.Struct, frozen=True):
    """One change of one key; `kv` is None for a deletion."""

    key: str
    kv: KeyValue | None
    mod_revision: int


class WatchBatch(msgspec.Struct, frozen=True):
    """Changes in revision order; all changes up to and including `revision` are now delivered."""

    revision: int
    events: tuple[Event, ...]


class Lease(Protocol):
    """A lease; its keys are deleted when it is revoked or not refreshed within its time to live."""

    id: int
    ttl: float

    async def refresh(self) -> bool:
        """Extend the lease once; return False if it no longer exists."""
        ...

    async def revoke(self) -> None:
        """End the lease and delete its keys now."""
        ...


class Metastore(Protocol):
    """The only interface between Evenkeel and etcd."""

    async def get(self, key: str) -> KeyValue | None:
        """Read one key, linearizably."""
        ...

    async def range(self, prefix: str, *, revision: int = 0) -> Snapshot:
        """Return all keys under `prefix` at one revision (0: the newest, linearizably)."""
        ...

    async def txn(self, txn: Txn) -> TxnResult:
        """Run one transaction. After an UnreachableError its outcome is unknown."""
        ...

    def watch(self, prefix: str, *, after: Snapshot) -> AsyncIterator[WatchBatch]:
        """Yield every change under `prefix` after `after.revision`, exactly once and in order.

        The watch survives disconnects, server restarts and compaction. If the history is gone, it lists again and
        yields the difference to what it has delivered. Intermediate values of a key may then be missing, because etcd
        no longer has them; the last value and every deletion are delivered.
        """
        ...

    async def lease(self, ttl: float) -> Lease:
        """Grant a lease of `ttl` seconds."""
        ...

    async def cluster_id(self) -> int:
        """Return the identity of this etcd cluster.

        A new cluster at the same addresses has another id only if it has another `--initial-cluster-token`. With the
        same token, only its lower revision shows that it is new.
        """
        ...

    async def forget(self) -> None:
        """Accept whichever etcd cluster answers next; the caller checks whether it is the right one."""
        ...

    async def full(self) -> str:
        """Return why writes are refused for lack of space; empty if they are not, or without permission to ask."""
        ...

    async def close(self) -> None:
        """Release connections; the instance cannot be used afterwards."""
        ...


def unchanged(key: str, kv: KeyValue | None) -> Compare:
    """Return a comparison that holds while `key` is as it was read."""
    return Compare(key, "mod", "=", 0 if kv is None else kv.mod_revision)


def absent(key: str) -> Compare:
    """Return a comparison that holds while `key` does not exist."""
    return Compare(key, "mod", "=", 0)
