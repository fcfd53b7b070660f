"""Configurations as short text, and one partition's keys in a real store, so that cases fit on a line.

`a1 b2 c2*` are three replicas: store, replica id, and `*` for a learner; `a2@3` lives on its store's third volume. In
targets there are no ids yet: `a b c* d@3`. A queue has `|` between its steps.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from evenkeel.metastore.metastore_api import Compare, Delete, KeyValue, Put, Txn
from evenkeel.metastore.mvcc import Mvcc
from evenkeel.protocol.keys import Keys
from evenkeel.protocol.partition_view import PartitionView, read_partition
from evenkeel.protocol.records import Lock, Peer, Pending, Planned, Role, Stable, TargetPeer, encode

KEYS = Keys(namespace="shop", store_cluster="main")
TABLE = "orders.7f3a"
PARTITION = KEYS.partition(TABLE, 0)

_PEER = re.compile(r"([a-z]+)(\d*)(?:@(\d+))?(\*?)")


def _parts(text: str) -> Iterable[tuple[str, str, str, Role]]:
    for word in text.split():
        found = _PEER.fullmatch(word)
        assert found is not None, word
        store, replica, volume, learner = found.groups()
        yield store, f"{store}-{volume or 1}", replica, Role.LEARNER if learner else Role.VOTER


def peers(text: str) -> tuple[Peer, ...]:
    """Parse replicas with their ids."""
    return tuple(Peer(store, volume, int(replica), role) for store, volume, replica, role in _parts(text))


def targets(text: str) -> tuple[TargetPeer, ...]:
    """Parse a plan's target."""
    return tuple(TargetPeer(store, volume, role) for store, volume, _, role in _parts(text))


def queue(text: str) -> Pending:
    """Parse the steps of a pending."""
    return Pending(tuple(peers(step) for step in text.split("|")))


def shown(found: Iterable[Peer]) -> str:
    """Format replicas in their order."""
    return " ".join(_word(peer) for peer in found)


def _word(peer: Peer) -> str:
    number = peer.volume.rsplit("-", 1)[1]
    volume = "" if number == "1" else f"@{number}"
    return f"{peer.store}{peer.replica}{volume}{'*' if peer.role is Role.LEARNER else ''}"


def shown_queue(pending: Pending | None) -> str | None:
    """Format a pending."""
    return None if pending is None else " | ".join(shown(step) for step in pending.queue)


def put(store: Mvcc, key: str, record: object) -> KeyValue:
    """Write one record unconditionally."""
    store.txn(Txn(success=(Put(key, encode(record)),)))
    kv = store.get(key)
    assert kv is not None
    return kv


def remove(store: Mvcc, key: str) -> None:
    """Delete one key."""
    store.txn(Txn(success=(Delete(key),)))


def holds(kv: KeyValue) -> Compare:
    """Return a comparison that holds while the key is unchanged."""
    return Compare(kv.key, "mod", "=", kv.mod_revision)


def stored(
    *,
    stable: str | None = None,
    pending: str | None = None,
    planned: str | None = None,
    trigger: int = 0,
    lock_term: int | None = None,
    genesis: bool = False,
) -> Mvcc:
    """Return a store with these keys of the partition; the lock has pending's change token."""
    store = Mvcc(keep_history=False)
    if stable is not None:
        put(store, PARTITION.stable, Stable(peers(stable), genesis))
    if pending is not None:
        token = put(store, PARTITION.pending, queue(pending)).mod_revision
        if lock_term is not None:
            put(store, PARTITION.lock, Lock(token=token, term=lock_term))
    if planned is not None:
        put(store, PARTITION.planned, Planned(peers(planned)))
    if trigger:
        put(store, PARTITION.trigger, trigger)
    return store


def read(store: Mvcc) -> PartitionView:
    """Read the partition's present keys."""
    return read_partition(PARTITION, {kv.key: kv for kv in store.range(KEYS.root).kvs})
