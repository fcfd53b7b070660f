"""Raises the cluster version as soon as the operator and every store support the next one.

A store counts while it is registered or holds replicas. A lost store counts with the versions it last announced, or as
one of the first release if it announced none. The annotation `evenkeel.dev/max-version` limits the version, so that a
downgrade stays possible. It is an annotation because the previous release ignores an annotation but refuses a field.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from evenkeel.metastore.metastore_api import Compare, KeyValue, Put, Txn, unchanged
from evenkeel.model.storecluster import StoreCluster
from evenkeel.protocol.keys import Keys
from evenkeel.protocol.records import ClusterVersion, Pending, Planned, Stable, decode, encode
from evenkeel.reconcile.known_stores import KnownStores
from evenkeel.versions import FIRST, SUPPORTED

__all__ = ["MAX_VERSION_ANNOTATION", "Versions", "holders", "raise_version"]

MAX_VERSION_ANNOTATION: Final = "evenkeel.dev/max-version"
"""On a StoreCluster: the highest cluster version that the operator may raise it to."""
_KINDS: Final[dict[str, type[Stable | Pending | Planned]]] = {
    "stable": Stable,
    "pending": Pending,
    "planned": Planned,
}


class Versions(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster version, and the versions it may rise to."""

    version: int
    """The cluster version in the metastore."""
    supported: int
    """The newest version that the operator and every store support."""
    behind: tuple[str, ...] = ()
    """Stores that support nothing newer than `supported` although the operator does."""
    limit: int | None = None
    """The annotation's limit."""
    problem: str = ""
    """Why the annotation is invalid; empty if it is not."""

    @classmethod
    def of(cls, version: int, known: KnownStores, cluster: StoreCluster | None, *, holding: Iterable[str]) -> Versions:
        """Compute the versions from the registered stores and those in `holding`, which hold replicas."""
        newest = {name: record.supported.newest for name, record in known.registered.items()}
        for name in holding:
            announced = known.announced.get(name)
            newest[name] = FIRST if announced is None else announced.supported.newest
        newest.update(dict.fromkeys(known.problems, FIRST))
        supported = min([SUPPORTED.newest, *newest.values()])
        behind = sorted(name for name, at in newest.items() if at < SUPPORTED.newest and at == supported)
        limit, problem = _limit(cluster, version)
        return cls(version=version, supported=supported, behind=tuple(behind), limit=limit, problem=problem)

    @property
    def target(self) -> int:
        """The desired cluster version; never lower than the current one."""
        allowed = self.supported if self.limit is None else min(self.supported, self.limit)
        return max(self.version, allowed)


def _limit(cluster: StoreCluster | None, version: int) -> tuple[int | None, str]:
    text = "" if cluster is None else cluster.metadata.annotations.get(MAX_VERSION_ANNOTATION, "")
    if not text:
        return None, ""
    where = f"annotation {MAX_VERSION_ANNOTATION}"
    if not text.isascii() or not text.isdecimal():
        return version, f"{where}: got {text!r}; allowed: a cluster version such as {version}; it stays at {version}"
    if int(text) < version:
        return version, f"{where}: got {text}; allowed: at least {version}, because the cluster version never falls"
    return int(text), ""


def holders(assignments: Iterable[KeyValue], keys: Keys) -> frozenset[str]:
    """Return the stores that hold or will hold a replica."""
    prefix, found = keys.assignments(), set[str]()
    for kv in assignments:
        kind = _KINDS.get(kv.key.removeprefix(prefix).partition("/")[0])
        if kind is not None:
            record = decode(kind, kv.value, key=kv.key)
            found.update(peer.store for peer in (record.peers() if isinstance(record, Pending) else record.peers))
    return frozenset(found)


def raise_version(
    versions: Versions, kv: KeyValue | None, known: KnownStores, *, keys: Keys, epoch: Compare
) -> Txn | None:
    """Return the transaction that raises the cluster version, or None; it fails if a store registers first."""
    if versions.target == versions.version or not known.registered:
        return None
    newest = max(found.mod_revision for key, found in known.kvs.items() if key.startswith(keys.stores()))
    stores = keys.stores()
    no_new_store = Compare(stores, "mod", "<", newest + 1, end=stores[:-1] + chr(ord(stores[-1]) + 1))
    put = Put(keys.version, encode(ClusterVersion(versions.target)))
    return Txn((epoch, unchanged(keys.version, kv), no_new_store), (put,))
