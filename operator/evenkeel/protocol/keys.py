"""Where everything lives in the metastore.

Keys are type-first (`<kind>/<table>/<partition>`), so that one prefix watch follows one kind of change for all tables
of a StoreCluster. Partitions have six digits, so that the keys of neighbours are neighbours and one comparison can
speak of many. `<table>` is `<name>.<uid>`: a table dropped and created again never meets old data.
"""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec

from evenkeel.errors import InvalidInputError

__all__ = ["LOAD_SLICE", "Keys", "PartitionKeys", "group_number", "table_name"]

LOAD_SLICE: Final = 1024
"""Partitions of a table whose sizes a store reports in one key: some 20 kB where it has a replica of all of them."""


def table_name(table: str) -> str:
    """Return the name in `<table>`, as users call it."""
    return table.partition(".")[0]


class PartitionKeys(msgspec.Struct, frozen=True, gc=False):
    """The keys of one partition that the rebalance protocol reads and writes together."""

    stable: str
    pending: str
    planned: str
    trigger: str
    lock: str

    def all(self) -> tuple[str, str, str, str, str]:
        """In the order the protocol compares them."""
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
        """The five keys one partition's transaction compares."""
        at = f"{table}/{partition:06}"
        return PartitionKeys(
            stable=f"{self.root}partition.assignments.stable/{at}",
            pending=f"{self.root}partition.assignments.pending/{at}",
            planned=f"{self.root}partition.assignments.planned/{at}",
            trigger=f"{self.root}partition.change.trigger/{at}",
            lock=f"{self.root}partition.assignments.pending.lock/{at}",
        )

    def partition_prefixes(self, table: str) -> PartitionKeys:
        """The prefixes under which the table's partitions have these keys."""
        return PartitionKeys(
            stable=f"{self.root}partition.assignments.stable/{table}/",
            pending=f"{self.root}partition.assignments.pending/{table}/",
            planned=f"{self.root}partition.assignments.planned/{table}/",
            trigger=f"{self.root}partition.change.trigger/{table}/",
            lock=f"{self.root}partition.assignments.pending.lock/{table}/",
        )

    def assignments(self) -> str:
        """Prefix of stable, pending, planned and lock of all partitions: `<kind>/<table>/<partition>` follows."""
        return f"{self.root}partition.assignments."

    def all_stable(self) -> str:
        """Prefix of stable of all partitions."""
        return f"{self.root}partition.assignments.stable/"

    def tables(self) -> str:
        """Prefix of all tables' records and tombstones, so that one watch shows a table's end as one change."""
        return f"{self.root}tables"

    def table(self, table: str) -> str:
        """The table's record."""
        return f"{self.root}tables/{table}"

    def tombstone(self, table: str) -> str:
        """Present from the drop until every store has confirmed it."""
        return f"{self.root}tables.dropped/{table}"

    def restored(self, table: str) -> str:
        """Which table's data a Table has that was restored; `table` is made of the uid that it has now."""
        return f"{self.root}restored/{table}"

    def plan_head(self, table: str) -> str:
        """The newest plan."""
        return f"{self.root}plans/{table}/head"

    def plan_slices(self, table: str, n: int) -> str:
        """Prefix of plan n's slices."""
        return f"{self.root}plans/{table}/{n}/"

    def plan_slice(self, table: str, n: int, index: int) -> str:
        """One slice of plan n; zero-padded, so that key order is slice order."""
        return f"{self.plan_slices(table, n)}{index:06d}"

    def plans(self, table: str) -> str:
        """Prefix of everything about the table's plans."""
        return f"{self.root}plans/{table}/"

    def all_plans(self) -> str:
        """Prefix of all tables' plans: `<table>/` follows."""
        return f"{self.root}plans/"

    def all_stores(self) -> str:
        """Prefix of stores' identities and of what was decided about them."""
        return f"{self.root}stores"

    def stores(self) -> str:
        """Prefix of all stores' identities."""
        return f"{self.root}stores/"

    def store(self, store: str) -> str:
        """The store's lease-bound identity."""
        return f"{self.stores()}{store}"

    def store_states(self) -> str:
        """Prefix of what the operator decided about stores."""
        return f"{self.root}stores.state/"

    def store_state(self, store: str) -> str:
        """What the operator decided about the store."""
        return f"{self.store_states()}{store}"

    def all_leaders(self) -> str:
        """Prefix of who leads any table's partitions."""
        return f"{self.root}leaders/"

    def leaders(self, table: str) -> str:
        """Prefix of who leads the table's partitions."""
        return f"{self.root}leaders/{table}/"

    def leader(self, table: str, partition: int) -> str:
        """Who leads, in which term."""
        return f"{self.leaders(table)}{partition:06}"

    def leader_targets(self) -> str:
        """Prefix of the orders to hand leadership over."""
        return f"{self.root}leader.target/"

    def leader_target(self, table: str, partition: int) -> str:
        """The order to hand leadership to a store."""
        return f"{self.leader_targets()}{table}/{partition:06}"

    def drains(self) -> str:
        """Prefix of the orders to lead nothing."""
        return f"{self.root}drains/"

    def drain(self, store: str) -> str:
        """The order to hand over all that the store leads; it holds for as long as the key is there."""
        return f"{self.drains()}{store}"

    def load(self, store: str) -> str:
        """What the store reports of itself and its replicas; sizes of replicas aside."""
        return f"{self.root}load/{store}"

    def load_slice(self, store: str, table: str, partition: int) -> str:
        """What the store reports of the sizes of the table's partitions around this one."""
        return f"{self.load(store)}/{table}/{partition // LOAD_SLICE:03}"

    def load_owner(self, key: str) -> tuple[str, str]:
        """Return the store and the table whose report a key under `load/` is; no table where it is about the store."""
        store, _, rest = key.removeprefix(self.load("")).partition("/")
        return store, rest.rpartition("/")[0]

    def rebalancer_context(self, table: str) -> str:
        """What the table's rebalancer saved."""
        return f"{self.root}rebalancer.context/{table}"

    def of_table(self, table: str) -> tuple[str, ...]:
        """Prefixes of all keys that go when the table is dropped, its record and tombstone aside."""
        return (
            *self.partition_prefixes(table).all(),
            self.plans(table),
            self.leaders(table),
            f"{self.leader_targets()}{table}/",
        )


def group_number(table: str, partition: int) -> int:
    """The number by which raft and the state-machine socket know a partition: the same wherever it is worked out.

    Sixty-two bits of a hash: of a million partitions on one store, two are alike once in ten million stores.
    """
    digest = hashlib.blake2b(f"{table}/{partition}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 2) or 1
