"""What the metastore's keys hold: one immutable type per kind of key, JSON on the wire so that etcdctl can read it.

A `Peer` is one replica of one partition. Its replica id is unique per addition, so a store that was wiped, or removed
and added again, is another replica: raft never confuses it with the one that promised votes and entries before.
A `TargetPeer` is a peer that has no id yet; ids are given inside the partition's transaction (`partition.py`), where
it is certain which peers are already there.

Configurations are *sets*: they are compared by (store, volume, role), never by bytes or order.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import TypeVar

import msgspec

from evenkeel.errors import MalformedRecordError
from evenkeel.versions import FIRST, VersionRange

__all__ = [
    "Adoption",
    "ClusterVersion",
    "Drain",
    "Dropped",
    "GroupLoad",
    "Leader",
    "LeaderOrder",
    "LoadSlice",
    "Lock",
    "Peer",
    "Pending",
    "PlanCounts",
    "PlanHead",
    "PlanSlice",
    "PlanState",
    "Planned",
    "ReplicaId",
    "Retarget",
    "Role",
    "Shape",
    "Stable",
    "StoreLoad",
    "StoreRecord",
    "StoreSettings",
    "StoreState",
    "TableRecord",
    "TableState",
    "TargetPeer",
    "Tombstone",
    "decode",
    "encode",
    "read_version",
    "shape",
    "voters",
]


class Role(enum.StrEnum):
    """What a replica is in its raft group."""

    VOTER = "voter"
    LEARNER = "learner"


class TargetPeer(msgspec.Struct, frozen=True, order=True, gc=False):
    """A replica as a plan asks for it: where, on which volume, in which role."""

    store: str
    volume: str
    role: Role = Role.VOTER


class Peer(msgspec.Struct, frozen=True, order=True, gc=False):
    """A replica that exists or is being made; only the sidecar whose own volume it names may start it."""

    store: str
    volume: str
    replica: int
    role: Role = Role.VOTER

    @property
    def id(self) -> ReplicaId:
        """Who it is in its raft group, whatever its role."""
        return (self.store, self.replica)


ReplicaId = tuple[str, int]
"""A replica's identity within its group: the store, and the number of the plan that added it there."""

Shape = frozenset[tuple[str, str, Role]]
"""What two configurations are compared by."""


def shape(peers: Iterable[Peer | TargetPeer]) -> Shape:
    """The configuration as a set of (store, volume, role)."""
    return frozenset([(peer.store, peer.volume, peer.role) for peer in peers])


def voters(peers: Iterable[Peer]) -> tuple[Peer, ...]:
    """The peers that vote."""
    return tuple([peer for peer in peers if peer.role is Role.VOTER])


class Stable(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The configuration raft runs, or one switch behind it; `genesis` until the first switch."""

    peers: tuple[Peer, ...]
    genesis: bool = False


class Pending(msgspec.Struct, frozen=True, gc=False):
    """The configurations still to apply, in order; the head is in progress. Never empty."""

    queue: tuple[tuple[Peer, ...], ...]

    @property
    def head(self) -> tuple[Peer, ...]:
        """The configuration in progress."""
        return self.queue[0]

    @property
    def last(self) -> tuple[Peer, ...]:
        """The configuration the whole queue leads to."""
        return self.queue[-1]

    def peers(self) -> Iterable[Peer]:
        """Every peer of every step."""
        return (peer for step in self.queue for peer in step)


class Planned(msgspec.Struct, frozen=True, gc=False):
    """The target that follows pending."""

    peers: tuple[Peer, ...]


class Lock(msgspec.Struct, frozen=True):
    """Pending is frozen: the leader of `term` is about to log, or has logged, the change that `token` stands for."""

    token: int
    term: int


class Leader(msgspec.Struct, frozen=True):
    """Who leads a partition; replaced only by a higher term."""

    store: str
    term: int


class Retarget(enum.StrEnum):
    """What a new target does to a change that is still catching up (`movement.retarget`)."""

    ADJUST = "Adjust"
    CANCEL = "Cancel"
    QUEUE = "Queue"


class TableState(enum.StrEnum):
    """Where a table is in its life; sidecars act on ready tables only."""

    CREATING = "creating"
    READY = "ready"
    DROPPING = "dropping"


class Dropped(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A table whose Table was deleted and whose data is kept: nobody is served, but replicas are looked after."""

    since: float
    """When that was, in seconds since 1970."""
    until: float | None = None
    """When the data is removed; None where somebody has to ask for it (`deletionPolicy: Retain`)."""
    undelete_for: str = "24h"
    """`undeleteFor` of the Table, which a restored one gets again."""


class TableRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The Table's spec as far as the metastore's readers need it."""

    partitions: int
    replicas: int
    consensus_size: int
    retarget: Retarget = Retarget.ADJUST
    state: TableState = TableState.CREATING
    bytes_per_second: int | None = None
    """Most bytes of it that a store copies for moves; None where only the store's own limit counts."""
    spec: msgspec.Raw = msgspec.Raw(b"{}")
    """The whole spec as the user wrote it, for those who need more (schema, rebalancer, placement)."""
    dropped: Dropped | None = None
    """There once the Table was deleted, for as long as the data is kept."""
    restored: str = ""
    """The key of the Table that has this data now, `<name>.<uid>`, where it was restored under another uid."""
    adopted: str = ""
    """The adoption that recreated this record; the table's leaders then publish their replicas (`table_lifecycle`)."""
    plan_floor: int = 0
    """Plans have higher numbers than this: numbers up to here may have been given to replicas before."""


class ClusterVersion(msgspec.Struct, frozen=True):
    """What all parts of the StoreCluster may write and send; see `evenkeel.versions`."""

    version: int = FIRST


class Tombstone(msgspec.Struct, frozen=True):
    """A dropped table: the volumes that have not yet confirmed that nothing of it is left on them."""

    waiting: tuple[tuple[str, str], ...]


class StoreRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A store's lease-bound identity."""

    volume: str
    address: str = ""
    """Where its sidecar answers its peers, as host:port."""
    flight: str = ""
    """Where it answers clients, as grpc://host:port or grpc+tls://host:port."""
    zone: str = ""
    node: str = ""
    weight: float = 1.0
    capacity: int | None = None
    labels: dict[str, str] = {}
    versions: VersionRange | None = None
    """The cluster versions that its sidecar and its state machine can both work with."""

    @property
    def supported(self) -> VersionRange:
        """The same, also of a store of the first release, which announces none."""
        return self.versions or VersionRange()


class StoreState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the operator decided about a store; no record means that it serves."""

    volume: str
    lost_since: float | None = None
    replace_in: tuple[str, ...] = ()
    """Tables whose own `lostAfter` has passed: the store's replicas of these are to be re-placed."""
    draining: bool = False
    maintenance: bool = False
    record: StoreRecord | None = None
    """The store as it last announced itself, with the StoreCluster's caps and overrides laid over it."""

    def given_up(self, table: str) -> bool:
        """Whether nobody waits for the store's replicas of the table any more."""
        return table in self.replace_in


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that every store of the StoreCluster takes up while it runs; written in full, defaults included."""

    bytes_per_second: float | None = None
    """Limit for snapshots in and out of one store; None is no limit."""
    snapshots_at_once: int = 4
    """Snapshots that a store makes and sends at the same time."""
    degraded_after: int = 6
    """Attempts that fail in a row before a partition has a problem."""
    longest_retry_seconds: float = 30.0
    """Upper bound of the wait between two attempts."""
    stalled_seconds: float = 30.0
    """How long a replica may be filled without progress before that is a problem."""
    step_down_when_stalled: bool = False
    """Whether a leader that cannot fill a replica lets another voter lead."""


class Adoption(msgspec.Struct, frozen=True):
    """Stores may follow this metastore in place of the one they followed: a user has said so."""

    cluster: str
    """The id of the etcd cluster that is meant, in hexadecimal digits."""
    request: str
    """The request as the user wrote it; a store follows each only once."""


class LeaderOrder(msgspec.Struct, frozen=True):
    """A partition is to be led by this store. Whoever leads it there, or leads when it has expired, deletes the key."""

    store: str
    expires: float
    """Seconds since 1970, by the clock of whoever ordered; only sidecars of the first release go by it."""
    seconds: float = 60.0
    """For how long it holds, from the moment at which a sidecar sees it: wall clocks need not agree."""


class Drain(msgspec.Struct, frozen=True, omit_defaults=True):
    """A store is to lead nothing; bound to a lease of whoever ordered, so that it ends when it is forgotten."""

    pod: str = ""
    """The UID of the pod that is meant; its successor of the same name is not. Empty: whoever runs the store."""


class GroupLoad(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One replica in a store's report of the older form: `[partition, leading, log bytes, bytes per second, bytes]`."""

    partition: int
    leading: bool
    log_bytes: int
    bytes_per_second: int
    """Proposed here since the last report; nothing where the replica does not lead."""
    bytes: int | None = None
    """Of its data: what a copy of it sends. None where its state machine does not tell."""


class LoadSlice(msgspec.Struct, frozen=True):
    """The sizes of a store's replicas of neighbouring partitions of one table."""

    sizes: tuple[tuple[int, int], ...]
    """Partition and bytes of its data (what a copy of it sends), where the state machine tells; two digits count."""


class StoreLoad(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a store reports of itself; sizes and rates have two digits that count, so that quiet stores do not write."""

    replicas: int
    leading: int
    log_bytes: int
    bytes_per_second: int
    tables: dict[str, tuple[GroupLoad, ...]] = {}
    """The older form only: everything in one value. The newer form has `LoadSlice`s in keys of their own."""
    filling: dict[str, dict[str, float]] = {}
    """By `<table>/<partition>` that is led here: the stores whose replicas are being filled, and how far (0 to 1).

    Of very many, those that are furthest.
    """
    problems: dict[str, str] = {}
    """By `<table>/<partition>`: why it does not get on; of very many, the first."""
    copied_per_second: int | None = None
    """Bytes per second in which replicas were last copied to this store; None where none was."""
    damaged: tuple[str, ...] = ()
    """Those whose rows here are damaged, or not as other replicas have them."""
    clock_ahead: int = 0
    """Seconds that the store's wall clock is ahead of most stores', behind where negative; 0 while it is close."""


class PlanState(enum.StrEnum):
    """Where a plan is in its life."""

    AWAITING_APPROVAL = "awaiting-approval"
    ACTIVE = "active"
    DONE = "done"
    """Never written; kept because the previous release's format has it."""


class PlanCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan changes, counted when it was made."""

    partitions: int
    """Whose peers change."""
    moves: int
    """Replicas that are copied, added or removed."""
    leaders: int
    """Partitions that get another leader."""


class PlanHead(msgspec.Struct, frozen=True, kw_only=True):
    """The newest plan of a table."""

    n: int
    hash: str
    """Of its targets: what an approval names."""
    inputs: int
    """The revision everything it rests on was read at."""
    basis: str = ""
    """Hash of what it rests on: as long as that stays the same, the plan is carried out and not made anew."""
    slices: int
    state: PlanState = PlanState.ACTIVE
    counts: PlanCounts | None = None
    """None where another version of Evenkeel did not count."""


class PlanSlice(msgspec.Struct, frozen=True, kw_only=True):
    """Targets of consecutive partitions: rows of indexes into `stores`, voters first, and the reasons of the moves."""

    first: int
    voters: int
    stores: tuple[tuple[str, str], ...]
    rows: tuple[tuple[int, ...], ...]
    reasons: dict[int, tuple[str, ...]] = {}

    def target(self, partition: int) -> tuple[TargetPeer, ...]:
        """The target of one of this slice's partitions."""
        stores, row = self.stores, self.rows[partition - self.first]
        deciding = [TargetPeer(*stores[index]) for index in row[: self.voters]]
        return (*deciding, *[TargetPeer(*stores[index], Role.LEARNER) for index in row[self.voters :]])


T = TypeVar("T")
_encoder = msgspec.json.Encoder()
_decoders: dict[type, msgspec.json.Decoder[object]] = {}


def read_version(value: bytes | None, *, key: str) -> int:
    """The cluster version that its key, or the absence of its key, stands for."""
    return FIRST if value is None else decode(ClusterVersion, value, key=key).version


def encode(record: object) -> bytes:
    """The record as it is stored."""
    return _encoder.encode(record)


def decode(kind: type[T], value: bytes, *, key: str) -> T:
    """The record stored under `key`, or an error that names the key and what is wrong with it."""
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.json.Decoder(kind)
    try:
        return decoder.decode(value)  # type: ignore[return-value]
    except (ValueError, RecursionError) as error:  # also of bytes that are no text, or nested without end
        shown = value[:80].decode(errors="replace")
        raise MalformedRecordError(
            f"metastore key {key!r} holds {shown!r}, which is not a {kind.__name__}: {error}; "
            "correct it with `etcdctl put`, or delete the key if nothing uses it"
        ) from error
