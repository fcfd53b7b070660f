"""Detects that a different metastore answers than the one a StoreCluster follows, and adopts it on request.

An etcd that was emptied, replaced or restored from a backup has no keys, or outdated ones, of tables whose data is on
the stores. A controller that trusted it would create these tables again. So the StoreCluster's status records the etcd
cluster and a revision, and reconciliation is suspended with any other until the user names it in `spec.adoptMetastore`.

Then the operator, table by table, removes the table's keys and writes its record again from the Table
(`table_lifecycle.adopt`). When all tables are done, the key `adoption` admits the stores, and their leaders publish
their replicas. A request is carried out once: both the key and the status record its value.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from evenkeel.metastore.metastore_api import Compare, KeyValue, Put, Txn, unchanged
from evenkeel.model.conditions import Reason
from evenkeel.model.storecluster import MetastoreStatus, StoreCluster
from evenkeel.protocol.keys import Keys
from evenkeel.protocol.records import Adoption, decode, encode
from evenkeel.reconcile.readiness import Verdict

__all__ = [
    "MetastoreSeen",
    "admit_stores_txn",
    "adopting",
    "metastore_mismatch",
    "metastore_status",
    "mismatch",
    "not_adopted",
    "refused_status",
    "with_newest",
]

LEAST_REVISIONS: Final = 100
MOST_REVISIONS: Final = 1000
"""The status records the newest revision again after a tenth more revisions, within these bounds."""


class MetastoreSeen(NamedTuple):
    """The metastore that answers."""

    cluster: str
    """Its id in hexadecimal."""
    revision: int
    key: KeyValue | None = None
    """The key `adoption`."""
    empty: bool = False
    """Whether no controller of this StoreCluster has acquired the epoch there."""

    @property
    def adoption(self) -> str:
        """The last request that was carried out with this metastore."""
        return "" if self.key is None else decode(Adoption, self.key.value, key=self.key.key).request

    @property
    def request(self) -> str:
        """The value of `spec.adoptMetastore` that adopts it."""
        return f"{self.cluster}@{self.revision}"


def _names(request: str, seen: MetastoreSeen) -> bool:
    """Whether a request names this metastore: its id and, optionally, a revision that it has reached."""
    cluster, _, revision = request.partition("@")
    return int(cluster, 16) == int(seen.cluster, 16) and seen.revision >= int(revision or 0)


def adopting(cluster: StoreCluster, seen: MetastoreSeen) -> str:
    """Return the request to carry out now; empty if there is none."""
    request = _open_request(cluster, seen)
    return request if request and _names(request, seen) else ""


def not_adopted(cluster: StoreCluster, seen: MetastoreSeen) -> str:
    """Return why the open request names another metastore than the one in use, and what to do; empty if it does not."""
    request = _open_request(cluster, seen)
    if not request or _names(request, seen):
        return ""
    # Without the metastore's revision: it changes constantly, and the status would be written as often.
    same = int(request.partition("@")[0], 16) == int(seen.cluster, 16)
    why = "has not reached that revision" if same else "answers"
    return (
        f"spec.adoptMetastore is {request}, but etcd cluster {seen.cluster} {why}; nothing was adopted; remove "
        "spec.adoptMetastore, or start the etcd cluster that it names"
    )


def _open_request(cluster: StoreCluster, seen: MetastoreSeen) -> str:
    """Return the request, unless it was carried out."""
    request, known = cluster.spec.adopt_metastore or "", _known(cluster)
    return "" if request in (seen.adoption, known.adopted if known is not None else "") else request


def mismatch(cluster: StoreCluster, seen: MetastoreSeen) -> str:
    """Return why this metastore is not the one that the StoreCluster follows; empty if it is."""
    known, request = _known(cluster), cluster.spec.adopt_metastore or ""
    if known is None or adopting(cluster, seen) or _just_adopted(known, request, seen):
        return ""
    remedy = (
        "reconciliation is suspended and stores keep serving; fix etcd, or, to use it as it is, set "
        f'spec.adoptMetastore to "{seen.request}"'
    )
    if known.cluster_id != seen.cluster:
        return f"etcd cluster {seen.cluster} answers instead of {known.cluster_id}; {remedy}"
    if seen.revision < known.revision or known.went_back:
        return (
            f"etcd cluster {seen.cluster} went back to a revision before {known.revision}, so it was emptied or "
            f"restored from a backup; {remedy}"
        )
    if seen.empty:
        return f"etcd cluster {seen.cluster} has no keys of this StoreCluster, so it was emptied; {remedy}"
    return ""


def with_newest(cluster: StoreCluster, newest: MetastoreSeen | None) -> StoreCluster:
    """Return the StoreCluster with the newest revision that was seen of its metastore in its status."""
    known = _known(cluster)
    if cluster.status is None or known is None or newest is None or newest.cluster != known.cluster_id:
        return cluster
    noted = known.model_copy(update={"revision": max(known.revision, newest.revision)})
    return cluster.model_copy(update={"status": cluster.status.model_copy(update={"metastore": noted})})


def refused_status(cluster: StoreCluster, seen: MetastoreSeen) -> MetastoreStatus | None:
    """Return what the status records about a refused metastore.

    One that went back will reach the recorded revision again with other contents, so that it went back is recorded.
    """
    known = _known(cluster)
    if known is None or known.cluster_id != seen.cluster or seen.revision >= known.revision:
        return known
    return known.model_copy(update={"went_back": True})


def _just_adopted(known: MetastoreStatus, request: str, seen: MetastoreSeen) -> bool:
    return bool(request) and request == seen.adoption and request != known.adopted and _names(request, seen)


def metastore_status(cluster: StoreCluster, seen: MetastoreSeen) -> MetastoreStatus | None:
    """Return what the status records about the metastore; unchanged during an adoption."""
    known, request = _known(cluster), cluster.spec.adopt_metastore or ""
    if adopting(cluster, seen):
        return known
    adopted = request if request and request == seen.adoption else known.adopted if known is not None else ""
    if known is not None and (known.cluster_id, known.adopted) == (seen.cluster, adopted):
        step = min(MOST_REVISIONS, max(LEAST_REVISIONS, known.revision // 10))
        if known.revision <= seen.revision < known.revision + step:
            return known
    return MetastoreStatus(cluster_id=seen.cluster, revision=seen.revision, adopted=adopted)


def metastore_mismatch(cluster: StoreCluster, seen: MetastoreSeen, *, left: int) -> Verdict:
    """Return the condition MetastoreMismatch of a metastore in use or being adopted; `left` tables are not adopted."""
    request = cluster.spec.adopt_metastore or ""
    if adopting(cluster, seen):
        message = f"etcd cluster {seen.cluster} is being adopted; {left} tables are left"
        return Verdict(True, Reason.METASTORE_ADOPTING, message)
    if request and request == seen.adoption:
        return Verdict(False, Reason.METASTORE_ADOPTED, f"etcd cluster {seen.cluster} was adopted ({request})")
    return Verdict(False, Reason.AS_EXPECTED, not_adopted(cluster, seen) or f"etcd cluster {seen.cluster} is in use")


def admit_stores_txn(request: str, seen: MetastoreSeen, *, keys: Keys, epoch: Compare) -> Txn:
    """Return the transaction that admits stores after all tables have been adopted."""
    value = encode(Adoption(cluster=seen.cluster, request=request))
    return Txn((epoch, unchanged(keys.adoption, seen.key)), (Put(keys.adoption, value),))


def _known(cluster: StoreCluster) -> MetastoreStatus | None:
    return cluster.status.metastore if cluster.status is not None else None
