"""What Evenkeel asks of a metastore: a small, exact subset of etcd v3.

Keys are text, values are bytes, and a revision counts every change of the whole store. One `Txn` is atomic:
all comparisons hold and `success` runs, or one does not and `failure` runs. A `mod_revision` of 0 means
"absent", which is how a transaction says that a key must not exist.

The types here are plain data without IO, so that the protocol can build transactions and the simulations can
run them; `etcd.py` and `memory.py` implement `Metastore`, and one conformance suite holds for both.
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
"""Etcd's default `--max-txn-ops`: it bounds comparisons, success and failure operations, each on its own."""


class KeyValue(msgspec.Struct, frozen=True, gc=False):
    """One key as stored at some revision."""

    key: str
    value: bytes
    mod_revision: int
    create_revision: int
    version: int
    lease: int = 0


class Compare(msgspec.Struct, frozen=True, gc=False):
    """`<field of key> <op> <operand>`; an absent key has mod, create and version 0 and no value.

    With `end`, it must hold for every key from `key` up to but not including `end`; where there is none, for an absent
    one. `mod < revision + 1` over a range says in one comparison that nothing there was written since `revision`.
    """

    key: str
    field: Literal["mod", "create", "version", "value"]
    op: Literal["=", "!=", "<", ">"]
    operand: int | bytes
    end: str = ""


class Put(msgspec.Struct, frozen=True, gc=False):
    """Write one key, bound to a lease when `lease` is not 0."""

    key: str
    value: bytes
    lease: int = 0


class Delete(msgspec.Struct, frozen=True, gc=False):
    """Remove one key, or with `prefix=True` every key that starts with it."""

    key: str
    prefix: bool = False


class Get(msgspec.Struct, frozen=True, gc=False):
    """Read one key, or with `prefix=True` every key that starts with it."""

    key: str
    prefix: bool = False


Op = Put | Delete | Get


class Txn(msgspec.Struct, frozen=True):
    """Atomic: if all comparisons hold run `success`, else run `failure`."""

    compares: tuple[Compare, ...] = ()
    success: tuple[Op, ...] = ()
    failure: tuple[Op, ...] = ()


class OpResult(msgspec.Struct, frozen=True, gc=False):
    """What one operation did: what a Get found, how many keys a Delete removed."""

    kvs: tuple[KeyValue, ...] = ()
    deleted: int = 0


class TxnResult(msgspec.Struct, frozen=True):
    """`results` are of the branch that ran, in order; `revision` is the store's after the transaction."""

    succeeded: bool
    revision: int
    results: tuple[OpResult, ...]


class Snapshot(msgspec.Struct, frozen=True):
    """All keys under a prefix as of one revision, in key order."""

    prefix: str
    revision: int
    kvs: tuple[KeyValue, ...]


class Event(msgspec.Struct, frozen=True):
    """One change of one key; `kv` is None for a deletion."""

    key: str
    kv: KeyValue | None
    mod_revision: int


class WatchBatch(msgspec.Struct, frozen=True):
    """Changes in revision order; every change up to and including `revision` has now been delivered."""

    revision: int
    events: tuple[Event, ...]


class Lease(Protocol):
    """Keys put with `id` vanish together when the lease is revoked or not refreshed for its time to live."""

    id: int
    ttl: float

    async def refresh(self) -> bool:
        """Extend the lease once; False when it is gone."""
        ...

    async def revoke(self) -> None:
        """End the lease and delete its keys now."""
        ...


class Metastore(Protocol):
    """The one seam between Evenkeel and etcd."""

    async def get(self, key: str) -> KeyValue | None:
        """Read one key, linearizably."""
        ...

    async def range(self, prefix: str, *, revision: int = 0) -> Snapshot:
        """All keys under `prefix` at one revision (0: the newest, linearizably), however many there are."""
        ...

    async def txn(self, txn: Txn) -> TxnResult:
        """Run one transaction. An UnreachableError leaves open whether it took effect."""
        ...

    def watch(self, prefix: str, *, after: Snapshot) -> AsyncIterator[WatchBatch]:
        """Every change under `prefix` past `after.revision`, each exactly once and in order.

        Survives disconnects, restarts of the server and compaction: where history is gone it lists anew,
        compares with what it has already delivered and yields the difference. Intermediate values of a key
        may then be left out, as etcd itself no longer has them; the last value and every deletion are not.
        """
        ...

    async def lease(self, ttl: float) -> Lease:
        """Grant a lease of `ttl` seconds."""
        ...

    async def cluster_id(self) -> int:
        """The identity of this etcd cluster.

        Another cluster answers another number, also a fresh one in its place if it was given an
        `--initial-cluster-token` of its own; one with the same token shows by its lower revision only.
        """
        ...

    async def forget(self) -> None:
        """Work with whatever etcd answers next: the caller judges by its own memory whether it is the right one."""
        ...

    async def full(self) -> str:
        """Why it refuses every write for lack of space; empty if it does not, or if we may not ask."""
        ...

    async def close(self) -> None:
        """Release connections; the instance cannot be used afterwards."""
        ...


def unchanged(key: str, kv: KeyValue | None) -> Compare:
    """The comparison that holds as long as `key` is as it was read."""
    return Compare(key, "mod", "=", 0 if kv is None else kv.mod_revision)


def absent(key: str) -> Compare:
    """The comparison that holds as long as `key` does not exist."""
    return Compare(key, "mod", "=", 0)
