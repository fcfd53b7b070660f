"""Names of all metastore keys of one StoreCluster.

Keys are type-first (`<kind>/<table>/<partition>`), so one prefix watch follows one kind of change for all tables.
Partition numbers are padded to six digits, so one range comparison covers neighbouring partitions. `<table>` is
`<name>.<uid>`, so a table that is dropped and created again never reads the old table's data.
"""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec

from evenkeel.errors import InvalidInputError

__all__ = ["LOAD_SLICE", "Keys", "PartitionKeys", "group_number", "table_name"]

LOAD_SLICE: Final = 1024
"""Partitions whose sizes a store reports in one key; about 20 kB if the store has a replica of each."""


def table_name(table: str) -> str:
    """Return the Table's name from `<name>.<uid>`."""
    return table.partition(".")[0]


class PartitionKeys(msgspec.Struct, frozen=True, gc=False):
    """The keys of one partition that the rebalance protocol reads and writes together."""

    stable: str
    pending: str
    planned: str
    trigger: str
    lock: str

    def all(self) -> tuple[str, str, str, str, str]:
        """Return the keys in the order of `PartitionView.mods()`."""
        return (self.stable, self.pending, self.planned, self.trigger, self.lock)


class Keys:
    """All keys of one StoreCluster."""

    __slots__ = ("adoption", "epoch", "root", "settings", "version")

    def __init__(self, *, namespace: str, store_cluster: str) -> None:
        for field, value in (("namespace", namespace), ("store_cluster", store_cluster)):
            if not value or "/" in value:
                raise InvalidInputError(f"{field}: got {value!r}; allowed: a name without '/'")
        self.root = f"/evenkeel/{namespace}/{store_cluster}/"
        self.epoch = f"{self.root}epoch"
        self.settings = f"{self.root}settings"
        self.version = f"{self.root}version"
        """The cluster version; absent means version 1."""
        self.adoption = f"{self.root}adoption"

    def partition(self, table: str, partition: int) -> PartitionKeys:
        """Return the five keys that a partition's transactions compare."""
        at = f"{table}/{partition:06}"
        return PartitionKeys(
            stable=f"{self.root}partition.assignments.stable/{at}",
            pending=f"{self.root}partition.assignments.pending/{at}",
            planned=f"{self.root}partition.assignments.planned/{at}",
            trigger=f"{self.root}partition.change.trigger/{at}",
            lock=f"{self.root}partition.assignments.pending.lock/{at}",
        )

    def partition_prefixes(self, table: str) -> PartitionKeys:
        """Return the prefixes of the five keys of all partitions of the table."""
        return PartitionKeys(
            stable=f"{self.root}partition.assignments.stable/{table}/",
            pending=f"{self.root}partition.assignments.pending/{table}/",
            planned=f"{self.root}partition.assignments.planned/{table}/",
            trigger=f"{self.root}partition.change.trigger/{table}/",
            lock=f"{self.root}partition.assignments.pending.lock/{table}/",
        )

    def assignments(self) -> str:
        """Prefix of stable, pending, planned and lock of all partitions; `<kind>/<table>/<partition>` follows."""
        return f"{self.root}partition.assignments."

    def all_stable(self) -> str:
        """Prefix of stable of all partitions."""
        return f"{self.root}partition.assignments.stable/"

    def tables(self) -> str:
        """Prefix of all tables' records and tombstones, so one watch delivers a drop as one change."""
        return f"{self.root}tables"

    def table(self, table: str) -> str:
        """The table's record."""
        return f"{self.root}tables/{table}"

    def tombstone(self, table: str) -> str:
        """The table's tombstone; present from the drop until every volume has confirmed it."""
        return f"{self.root}tables.dropped/{table}"

    def restored(self, table: str) -> str:
        """The source table of a restored Table; `table` has the Table's present uid."""
        return f"{self.root}restored/{table}"

    def plan_head(self, table: str) -> str:
        """The head record of the table's newest plan."""
        return f"{self.root}plans/{table}/head"

    def plan_slices(self, table: str, n: int) -> str:
        """Prefix of plan n's slices."""
        return f"{self.root}plans/{table}/{n}/"

    def plan_slice(self, table: str, n: int, index: int) -> str:
        """One slice of plan n; zero-padded, so key order is slice order."""
        return f"{self.plan_slices(table, n)}{index:06d}"

    def plans(self, table: str) -> str:
        """Prefix of everything about the table's plans."""
        return f"{self.root}plans/{table}/"

    def all_plans(self) -> str:
        """Prefix of all tables' plans; `<table>/` follows."""
        return f"{self.root}plans/"

    def all_stores(self) -> str:
        """Prefix of all stores' identities and states."""
        return f"{self.root}stores"

    def stores(self) -> str:
        """Prefix of all stores' identities."""
        return f"{self.root}stores/"

    def store(self, store: str) -> str:
        """The store's lease-bound identity."""
        return f"{self.stores()}{store}"

    def store_states(self) -> str:
        """Prefix of all stores' states, which the operator writes."""
        return f"{self.root}stores.state/"

    def store_state(self, store: str) -> str:
        """The store's state, which the operator writes."""
        return f"{self.store_states()}{store}"

    def all_leaders(self) -> str:
        """Prefix of the leader records of all tables."""
        return f"{self.root}leaders/"

    def leaders(self, table: str) -> str:
        """Prefix of the leader records of the table's partitions."""
        return f"{self.root}leaders/{table}/"

    def leader(self, table: str, partition: int) -> str:
        """The partition's leader record: store and term."""
        return f"{self.leaders(table)}{partition:06}"

    def leader_targets(self) -> str:
        """Prefix of all orders to hand a leadership over."""
        return f"{self.root}leader.target/"

    def leader_target(self, table: str, partition: int) -> str:
        """The order to hand the partition's leadership over to a store."""
        return f"{self.leader_targets()}{table}/{partition:06}"

    def inhibitions(self) -> str:
        """Prefix of the orders that inhibit stores' leadership."""
        return f"{self.root}drains/"

    def inhibition(self, store: str) -> str:
        """The order to inhibit the store's leadership; in force while the key exists."""
        return f"{self.inhibitions()}{store}"

    def load(self, store: str) -> str:
        """The store's load report, without replica sizes."""
        return f"{self.root}load/{store}"

    def load_slice(self, store: str, table: str, partition: int) -> str:
        """The store's report of replica sizes for the slice of partitions that contains this one."""
        return f"{self.load(store)}/{table}/{partition // LOAD_SLICE:03}"

    def load_owner(self, key: str) -> tuple[str, str]:
        """Return the store and table of a key under `load/`; the table is empty for the store's own report."""
        store, _, rest = key.removeprefix(self.load("")).partition("/")
        return store, rest.rpartition("/")[0]

    def rebalancer_context(self, table: str) -> str:
        """The context that the table's rebalancer saved."""
        return f"{self.root}rebalancer.context/{table}"

    def of_table(self, table: str) -> tuple[str, ...]:
        """Prefixes of all keys that a drop deletes, except the record, the tombstone and the rebalancer's context."""
        return (
            *self.partition_prefixes(table).all(),
            self.plans(table),
            self.leaders(table),
            f"{self.leader_targets()}{table}/",
        )


def group_number(table: str, partition: int) -> int:
    """Return the partition's id for raft and the state-machine socket.

    The id is 62 bits of a hash. With a million partitions per store, about one store in ten million has a collision.
    """
    digest = hashlib.blake2b(f"{table}/{partition}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 2) or 1
