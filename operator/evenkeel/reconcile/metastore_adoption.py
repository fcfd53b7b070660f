"""Whether the metastore that answers is the one a StoreCluster has followed, and taking over another one.

An etcd that was emptied, replaced or restored from a backup knows nothing, or what is long over, of tables whose data
is on the stores. A controller that believed it would create them anew. So the StoreCluster's status remembers the etcd
cluster and a revision of it, and nothing is done with another one until the user names it in `spec.adoptMetastore`.

Then, table by table, the operator removes the metastore's keys of the table and writes its record again from the Table
(`table_lifecycle.adopt`). When all tables are done, the key `adoption` admits the stores, and their leaders publish
their replicas. A request is carried out once: the key and the status both keep its value.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from evenkeel.metastore.metastore_api import Compare, KeyValue, Put, Txn, unchanged
from evenkeel.model.conditions import Reason
from evenkeel.model.storecluster import MetastoreStatus, StoreCluster
from evenkeel.protocol.keys import Keys
from evenkeel.protocol.records import Adoption, decode, encode

__all__ = [
    "MetastoreSeen",
    "MetastoreWords",
    "adopting",
    "metastore_status",
    "metastore_words",
    "not_adopted",
    "open_txn",
    "refused_status",
    "stranger",
    "with_newest",
]

LEAST_REVISIONS: Final = 100
MOST_REVISIONS: Final = 1000
"""After a tenth more revisions the status notes the newest one again, within these bounds."""


class MetastoreSeen(NamedTuple):
    """The metastore that answers."""

    cluster: str
    """Its id, in hexadecimal digits."""
    revision: int
    key: KeyValue | None = None
    """The key `adoption`."""
    empty: bool = False
    """Whether no controller of this StoreCluster ever took charge there."""

    @property
    def adoption(self) -> str:
        """The request that was carried out here last."""
        return "" if self.key is None else decode(Adoption, self.key.value, key=self.key.key).request

    @property
    def request(self) -> str:
        """How a user asks for its adoption."""
        return f"{self.cluster}@{self.revision}"


class MetastoreWords(NamedTuple):
    """What the condition MetastoreMismatch says."""

    holds: bool
    reason: Reason
    message: str


def _names(request: str, seen: MetastoreSeen) -> bool:
    """Whether the request means this metastore: its id and, where it says one, a revision that it has reached."""
    cluster, _, revision = request.partition("@")
    return int(cluster, 16) == int(seen.cluster, 16) and seen.revision >= int(revision or 0)


def adopting(cluster: StoreCluster, seen: MetastoreSeen) -> str:
    """The request that is to be carried out now; empty where there is none."""
    request = _open_request(cluster, seen)
    return request if request and _names(request, seen) else ""


def not_adopted(cluster: StoreCluster, seen: MetastoreSeen) -> str:
    """Why the request is not carried out though this metastore is followed, and what to do; empty where it is."""
    request = _open_request(cluster, seen)
    if not request or _names(request, seen):
        return ""
    # No revision of the metastore's here: it changes all the time, and the status would be written as often.
    same = int(request.partition("@")[0], 16) == int(seen.cluster, 16)
    why = "has not reached that revision" if same else "answers"
    return (
        f"spec.adoptMetastore names {request}, but etcd cluster {seen.cluster} {why} and is followed; nothing is "
        "adopted: remove spec.adoptMetastore, or bring up the etcd cluster that it names"
    )


def _open_request(cluster: StoreCluster, seen: MetastoreSeen) -> str:
    """The request, unless it was carried out."""
    request, known = cluster.spec.adopt_metastore or "", _known(cluster)
    return "" if request in (seen.adoption, known.adopted if known is not None else "") else request


def stranger(cluster: StoreCluster, seen: MetastoreSeen) -> str:
    """Why nothing may be done with this metastore; empty where something may."""
    known, request = _known(cluster), cluster.spec.adopt_metastore or ""
    if known is None or adopting(cluster, seen) or _just_adopted(known, request, seen):
        return ""
    remedy = (
        "nothing is changed, and stores go on serving: correct etcd, or, if it is to be used as it is, set "
        f'spec.adoptMetastore to "{seen.request}"'
    )
    if known.cluster_id != seen.cluster:
        return f"etcd cluster {seen.cluster} answers, but {known.cluster_id} was followed; {remedy}"
    if seen.revision < known.revision or known.went_back:
        return (
            f"etcd cluster {seen.cluster} went back to a revision before {known.revision}, which was seen: it was "
            f"emptied or restored from a backup; {remedy}"
        )
    if seen.empty:
        return f"etcd cluster {seen.cluster} has nothing of this StoreCluster any more: it was emptied; {remedy}"
    return ""


def with_newest(cluster: StoreCluster, newest: MetastoreSeen | None) -> StoreCluster:
    """The StoreCluster as if its status had noted the newest revision that was seen of the metastore it follows."""
    known = _known(cluster)
    if cluster.status is None or known is None or newest is None or newest.cluster != known.cluster_id:
        return cluster
    noted = known.model_copy(update={"revision": max(known.revision, newest.revision)})
    return cluster.model_copy(update={"status": cluster.status.model_copy(update={"metastore": noted})})


def refused_status(cluster: StoreCluster, seen: MetastoreSeen) -> MetastoreStatus | None:
    """What the status remembers of a metastore that is refused.

    One that went back reaches, in time, any revision that was seen before. It has a past of its own all the same.
    """
    known = _known(cluster)
    if known is None or known.cluster_id != seen.cluster or seen.revision >= known.revision:
        return known
    return known.model_copy(update={"went_back": True})


def _just_adopted(known: MetastoreStatus, request: str, seen: MetastoreSeen) -> bool:
    return bool(request) and request == seen.adoption and request != known.adopted and _names(request, seen)


def metastore_status(cluster: StoreCluster, seen: MetastoreSeen) -> MetastoreStatus | None:
    """What the status remembers from now on; what it did while an adoption is under way."""
    known, request = _known(cluster), cluster.spec.adopt_metastore or ""
    if adopting(cluster, seen):
        return known
    adopted = request if request and request == seen.adoption else known.adopted if known is not None else ""
    if known is not None and (known.cluster_id, known.adopted) == (seen.cluster, adopted):
        step = min(MOST_REVISIONS, max(LEAST_REVISIONS, known.revision // 10))
        if known.revision <= seen.revision < known.revision + step:
            return known
    return MetastoreStatus(cluster_id=seen.cluster, revision=seen.revision, adopted=adopted)


def metastore_words(cluster: StoreCluster, seen: MetastoreSeen, *, left: int) -> MetastoreWords:
    """What to say of a metastore that is followed or being adopted; `left` tables are still to be taken over."""
    request = cluster.spec.adopt_metastore or ""
    if adopting(cluster, seen):
        words = f"etcd cluster {seen.cluster} is being adopted: {left} tables are still to be taken over"
        return MetastoreWords(True, Reason.METASTORE_ADOPTING, words)
    if request and request == seen.adoption:
        words = f"etcd cluster {seen.cluster} was adopted ({request})"
        return MetastoreWords(False, Reason.METASTORE_ADOPTED, words)
    words = not_adopted(cluster, seen) or f"etcd cluster {seen.cluster} is followed"
    return MetastoreWords(False, Reason.AS_EXPECTED, words)


def open_txn(request: str, seen: MetastoreSeen, *, keys: Keys, epoch: Compare) -> Txn:
    """Let stores follow: all tables have been taken over."""
    value = encode(Adoption(cluster=seen.cluster, request=request))
    return Txn((epoch, unchanged(keys.adoption, seen.key)), (Put(keys.adoption, value),))


def _known(cluster: StoreCluster) -> MetastoreStatus | None:
    return cluster.status.metastore if cluster.status is not None else None
