"""The types of metastore values: one immutable type per kind of key, encoded as JSON so that etcdctl can read it.

A `Peer` is one replica of one partition. Each addition gets a new replica id. So a store that was wiped, or removed
and added again, holds another replica, and raft never confuses it with the one that gave votes and acknowledgements.
A `TargetPeer` has no id yet. `change_steps` assigns ids for the partition's transaction, which compares the existing
peers.

Configurations are sets: they are compared by (store, volume, role), never by bytes or order.
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
    "Dropped",
    "GroupLoad",
    "InhibitionOrder",
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
    """A replica's role in its raft group."""

    VOTER = "voter"
    LEARNER = "learner"


class TargetPeer(msgspec.Struct, frozen=True, order=True, gc=False):
    """A replica in a plan: store, volume and role."""

    store: str
    volume: str
    role: Role = Role.VOTER


class Peer(msgspec.Struct, frozen=True, order=True, gc=False):
    """A replica that exists or is being added; only the sidecar with this volume may start it."""

    store: str
    volume: str
    replica: int
    role: Role = Role.VOTER

    @property
    def id(self) -> ReplicaId:
        """The replica's identity in its raft group, independent of its role."""
        return (self.store, self.replica)


ReplicaId = tuple[str, int]
"""A replica's identity in its group: the store, and the number of the plan that added it there."""

Shape = frozenset[tuple[str, str, Role]]
"""A configuration as a set; two configurations are equal if their shapes are."""


def shape(peers: Iterable[Peer | TargetPeer]) -> Shape:
    """Return the configuration as a set of (store, volume, role)."""
    return frozenset([(peer.store, peer.volume, peer.role) for peer in peers])


def voters(peers: Iterable[Peer]) -> tuple[Peer, ...]:
    """Return the voters among the peers."""
    return tuple([peer for peer in peers if peer.role is Role.VOTER])


class Stable(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The configuration that raft runs, or the one before it; `genesis` until the first switch."""

    peers: tuple[Peer, ...]
    genesis: bool = False


class Pending(msgspec.Struct, frozen=True, gc=False):
    """The configurations to apply, in order; the head is in progress. Never empty."""

    queue: tuple[tuple[Peer, ...], ...]

    @property
    def head(self) -> tuple[Peer, ...]:
        """The configuration in progress."""
        return self.queue[0]

    @property
    def last(self) -> tuple[Peer, ...]:
        """The configuration after the last step."""
        return self.queue[-1]

    def peers(self) -> Iterable[Peer]:
        """Return the peers of all steps."""
        return (peer for step in self.queue for peer in step)


class Planned(msgspec.Struct, frozen=True, gc=False):
    """The target that follows pending."""

    peers: tuple[Peer, ...]


class Lock(msgspec.Struct, frozen=True):
    """Freezes pending: the leader of `term` is about to log, or has logged, the change with change token `token`."""

    token: int
    term: int


class Leader(msgspec.Struct, frozen=True):
    """The leader of a partition; replaced only by one of a higher term."""

    store: str
    term: int


class Retarget(enum.StrEnum):
    """How a new target affects a change that is still catching up (`movement.retarget`)."""

    ADJUST = "Adjust"
    CANCEL = "Cancel"
    QUEUE = "Queue"


class TableState(enum.StrEnum):
    """A table's lifecycle state; sidecars act on ready tables only."""

    CREATING = "creating"
    READY = "ready"
    DROPPING = "dropping"


class Dropped(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The Table was deleted and its data is kept: clients are not served, replicas are still maintained."""

    since: float
    """Time of the deletion, in seconds since 1970."""
    until: float | None = None
    """When the data is removed; None if only on request (`deletionPolicy: Retain`)."""
    undelete_for: str = "24h"
    """The Table's `undeleteFor`, which a restored Table gets again."""


class TableRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A table's settings and state for the readers of the metastore."""

    partitions: int
    replicas: int
    consensus_size: int
    retarget: Retarget = Retarget.ADJUST
    state: TableState = TableState.CREATING
    bytes_per_second: int | None = None
    """Limit for copying this table's replicas, per store; None if only the store's own limit applies."""
    spec: msgspec.Raw = msgspec.Raw(b"{}")
    """The whole spec as the user wrote it, with schema, rebalancer and placement."""
    dropped: Dropped | None = None
    """Set while the Table is deleted and its data is kept."""
    restored: str = ""
    """`<name>.<uid>` of the Table that owns this data, if it was restored under another uid."""
    adopted: str = ""
    """The adoption request that recreated this record; leaders then publish what raft runs (`table_lifecycle`)."""
    plan_floor: int = 0
    """Plan numbers start above this; lower numbers may already be in use as replica ids."""


class ClusterVersion(msgspec.Struct, frozen=True):
    """The version of the formats that all components may write and send; see `evenkeel.versions`."""

    version: int = FIRST


class Tombstone(msgspec.Struct, frozen=True):
    """A dropped table, with the volumes that have not yet confirmed that they hold none of its data."""

    waiting: tuple[tuple[str, str], ...]


class StoreRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A store's lease-bound identity."""

    volume: str
    address: str = ""
    """The sidecar's address for its peers, host:port."""
    flight: str = ""
    """The store's address for clients, grpc://host:port or grpc+tls://host:port."""
    zone: str = ""
    node: str = ""
    weight: float = 1.0
    capacity: int | None = None
    labels: dict[str, str] = {}
    versions: VersionRange | None = None
    """The cluster versions that both its sidecar and its state machine support."""

    @property
    def supported(self) -> VersionRange:
        """The supported cluster versions; a store of the first release announces none and supports the first."""
        return self.versions or VersionRange()


class StoreState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The operator's decisions about a store; without a record the store serves normally."""

    volume: str
    lost_since: float | None = None
    replace_in: tuple[str, ...] = ()
    """Tables whose `lostAfter` has passed; the planner replaces the store's replicas of these tables."""
    draining: bool = False
    maintenance: bool = False
    record: StoreRecord | None = None
    """The store's last identity, with the StoreCluster's caps and overrides applied."""

    def given_up(self, table: str) -> bool:
        """Whether the store's replicas of the table are to be replaced."""
        return table in self.replace_in


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that all stores apply at run time; written in full, including defaults."""

    bytes_per_second: float | None = None
    """Limit for snapshots to and from one store; None means unlimited."""
    snapshots_at_once: int = 4
    """Number of snapshots that a store takes and sends concurrently."""
    degraded_after: int = 6
    """Number of consecutive failed attempts after which a problem is reported."""
    longest_retry_seconds: float = 30.0
    """Upper bound of the delay between two attempts."""
    stalled_seconds: float = 30.0
    """Time without progress after which a snapshot transfer is reported as stalled."""
    step_down_when_stalled: bool = False
    """Whether a leader whose snapshot transfer is stalled hands leadership over to another voter."""


class Adoption(msgspec.Struct, frozen=True):
    """A user's permission for stores to follow this metastore instead of their previous one."""

    cluster: str
    """The id of the new etcd cluster, in hexadecimal digits."""
    request: str
    """The request as the user wrote it; a store follows each request only once."""


class LeaderOrder(msgspec.Struct, frozen=True):
    """An order to hand a partition's leadership over to a store. The leader deletes it once done or expired."""

    store: str
    expires: float
    """Seconds since 1970, by the clock of the sender; only sidecars of the first release use it."""
    seconds: float = 60.0
    """How long the order is valid after a sidecar first sees it, so wall clocks need not agree."""


class InhibitionOrder(msgspec.Struct, frozen=True, omit_defaults=True):
    """An order that a store leads nothing; bound to the sender's lease, so it ends if the sender stops renewing it."""

    pod: str = ""
    """The UID of the pod it applies to, so that a replacement pod may lead; empty applies to any pod."""


class GroupLoad(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One replica in the older report format: `[partition, leading, log bytes, bytes per second, bytes]`."""

    partition: int
    leading: bool
    log_bytes: int
    bytes_per_second: int
    """Rate of proposals since the last report; 0 if the replica does not lead."""
    bytes: int | None = None
    """Size of its data, which a copy sends; None if its state machine does not report it."""


class LoadSlice(msgspec.Struct, frozen=True):
    """The sizes of a store's replicas of neighbouring partitions of one table."""

    sizes: tuple[tuple[int, int], ...]
    """Partition and data size in bytes, rounded to two significant digits, if the state machine reports it."""


class StoreLoad(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A store's load report; sizes and rates have two significant digits, so that idle stores do not write."""

    replicas: int
    leading: int
    log_bytes: int
    bytes_per_second: int
    tables: dict[str, tuple[GroupLoad, ...]] = {}
    """Older format only: all replicas in one value. The newer format has `LoadSlice`s in separate keys."""
    filling: dict[str, dict[str, float]] = {}
    """By `<table>/<partition>` led by this store: the stores that receive a snapshot, and its progress (0 to 1).

    If there are too many, those with the most progress.
    """
    problems: dict[str, str] = {}
    """By `<table>/<partition>`: why it makes no progress; if there are too many, the first."""
    copied_per_second: int | None = None
    """Rate in bytes per second of the last copies to this store; None if there were none."""
    damaged: tuple[str, ...] = ()
    """`<table>/<partition>` of replicas whose rows are damaged or differ from other replicas."""
    clock_ahead: int = 0
    """Seconds by which the store's wall clock is ahead of most stores' (negative: behind); 0 if close."""


class PlanState(enum.StrEnum):
    """A plan's lifecycle state."""

    AWAITING_APPROVAL = "awaiting-approval"
    ACTIVE = "active"
    DONE = "done"
    """Never written; kept because the previous release's format has it."""


class PlanCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The size of a plan's change, counted when the plan was made."""

    partitions: int
    """Partitions whose peers change."""
    moves: int
    """Replicas that are copied, added or removed."""
    leaders: int
    """Partitions that get another leader."""


class PlanHead(msgspec.Struct, frozen=True, kw_only=True):
    """The newest plan of a table."""

    n: int
    hash: str
    """Hash of its targets, which an approval names."""
    inputs: int
    """The metastore revision at which the plan's inputs were read."""
    basis: str = ""
    """Hash of the plan's inputs; while it is unchanged, the plan stays in force."""
    slices: int
    state: PlanState = PlanState.ACTIVE
    counts: PlanCounts | None = None
    """None if the plan was written by a version of Evenkeel that does not count."""


class PlanSlice(msgspec.Struct, frozen=True, kw_only=True):
    """Targets of consecutive partitions, as rows of indexes into `stores`, voters first; and the reasons of moves."""

    first: int
    voters: int
    stores: tuple[tuple[str, str], ...]
    rows: tuple[tuple[int, ...], ...]
    reasons: dict[int, tuple[str, ...]] = {}

    def target(self, partition: int) -> tuple[TargetPeer, ...]:
        """Return the target of one partition of this slice."""
        stores, row = self.stores, self.rows[partition - self.first]
        voting = [TargetPeer(*stores[index]) for index in row[: self.voters]]
        return (*voting, *[TargetPeer(*stores[index], Role.LEARNER) for index in row[self.voters :]])


T = TypeVar("T")
_encoder = msgspec.json.Encoder()
_decoders: dict[type, msgspec.json.Decoder[object]] = {}


def read_version(value: bytes | None, *, key: str) -> int:
    """Return the cluster version from its key's value; the first version if the key is absent."""
    return FIRST if value is None else decode(ClusterVersion, value, key=key).version


def encode(record: object) -> bytes:
    """Encode a record as JSON."""
    return _encoder.encode(record)


def decode(kind: type[T], value: bytes, *, key: str) -> T:
    """Decode the record stored under `key`; the error names the key and the problem."""
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.json.Decoder(kind)
    try:
        return decoder.decode(value)  # type: ignore[return-value]
    except (ValueError, RecursionError) as error:  # including bytes that are not UTF-8, and endless nesting
        shown = value[:80].decode(errors="replace")
        raise MalformedRecordError(
            f"metastore key {key!r} holds {shown!r}, which is not a {kind.__name__}: {error}; "
            "correct it with `etcdctl put`, or delete the key if nothing uses it"
        ) from error
