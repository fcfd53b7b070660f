"""Immutable value types of planner and rebalancers.

An `Assignment` is one integer matrix, because a million partitions as Python objects would take gigabytes and seconds.
Row p lists the replicas of partition p as indexes into `stores`, padded with -1 at the end. The order matters: column 0
is the preferred leader, the first `voters` entries are voters and the rest are learners.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

__all__ = [
    "NO_STORE",
    "SLICE",
    "Assignment",
    "Choice",
    "CurrentState",
    "Mode",
    "Move",
    "Placement",
    "StoreView",
    "StoresView",
    "TableView",
    "slice_name",
]

NO_STORE = -1

Mode = Literal["FullAuto", "SemiAuto", "Customized", "UserDefined"]
"""What decides the placement of a table's replicas."""

SLICE = 64
"""Partitions per PartitionAssignment: few objects, each small enough for etcd."""


def slice_name(table: str, partition: int) -> str:
    """Return the name of the PartitionAssignment that contains `partition`."""
    return f"{table}-{partition // SLICE}"


class StoreView(msgspec.Struct, frozen=True, kw_only=True):
    """A store as the planner sees it."""

    name: str
    volume: str = ""
    zone: str = ""
    weight: float = 1.0
    """Share of replicas and leaders relative to the other stores; 0 gets none."""
    capacity: int | None = None
    """Maximum number of replicas of all tables on the store; None is unlimited."""
    used_by_others: int = 0
    """Replicas of other tables that count against `capacity`."""
    live: bool = True
    """False once the store has been unavailable for longer than `lostAfter`; its replicas are then replaced."""
    draining: bool = False
    """True while all replicas are to leave the store."""
    labels: Mapping[str, str] = {}

    @property
    def usable(self) -> bool:
        """Whether the store may receive or keep replicas."""
        return self.live and not self.draining


class StoresView(msgspec.Struct, frozen=True):
    """All known stores, ordered by name."""

    stores: tuple[StoreView, ...]

    @classmethod
    def of(cls, *stores: StoreView) -> StoresView:
        """Create the view; stores are sorted so that a plan does not depend on the order of discovery."""
        return cls(tuple(sorted(stores, key=lambda store: store.name)))

    def live(self) -> tuple[StoreView, ...]:
        """Return the stores that may hold replicas."""
        return tuple(store for store in self.stores if store.usable)


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """The `placement` of a Table: which stores may hold replicas."""

    zone_spread: bool = True
    store_selector: Mapping[str, str] = {}
    """Use only stores that have all of these labels."""
    max_per_store: int | None = None
    """Maximum number of replicas of this table on one store; None is unlimited."""


class TableView(msgspec.Struct, frozen=True, kw_only=True):
    """A table as planner and rebalancers see it."""

    name: str
    partitions: int
    replicas: int
    consensus_size: int
    placement: Placement = Placement()
    config: Mapping[str, object] = {}
    """The `rebalancer.config` of the Table, as the user wrote it."""


class Assignment:
    """Which stores hold which partition; the module's docstring describes a row."""

    __slots__ = ("rows", "stores", "voters")

    stores: tuple[str, ...]
    rows: NDArray[np.int32]
    voters: int

    def __init__(self, stores: Sequence[str], rows: NDArray[np.int32], *, voters: int) -> None:
        self.stores = tuple(stores)
        self.rows = np.ascontiguousarray(rows, dtype=np.int32)
        self.rows.setflags(write=False)
        self.voters = voters

    @classmethod
    def of(cls, rows: Sequence[Sequence[str]], *, voters: int, stores: Sequence[str] = ()) -> Assignment:
        """Create an assignment from names: `rows[p]` lists the stores of partition p, preferred leader first."""
        names = sorted(set(stores).union(*rows)) if rows else sorted(stores)
        index = {name: i for i, name in enumerate(names)}
        width = max((len(row) for row in rows), default=0)
        matrix = np.full((len(rows), width), NO_STORE, dtype=np.int32)
        for p, row in enumerate(rows):
            matrix[p, : len(row)] = [index[name] for name in row]
        return cls(names, matrix, voters=voters)

    @classmethod
    def empty(cls, partitions: int) -> Assignment:
        """Create the assignment of a new table, in which nothing is assigned."""
        return cls((), np.full((partitions, 0), NO_STORE, dtype=np.int32), voters=0)

    @property
    def partitions(self) -> int:
        """Number of partitions."""
        return int(self.rows.shape[0])

    def stores_of(self, partition: int) -> tuple[str, ...]:
        """Return the stores of a partition, preferred leader first, voters before learners."""
        return tuple(self.stores[i] for i in self.rows[partition] if i != NO_STORE)

    def leader_of(self, partition: int) -> str | None:
        """Return the preferred leader, or None for an empty row."""
        stores = self.stores_of(partition)
        return stores[0] if stores else None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Assignment):
            return NotImplemented
        return self.partitions == other.partitions and all(
            self.stores_of(p) == other.stores_of(p) for p in range(self.partitions)
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Assignment({self.partitions} partitions, {len(self.stores)} stores, voters={self.voters})"


class CurrentState(msgspec.Struct, frozen=True, kw_only=True):
    """The observed state of a table, as opposed to its last target."""

    leaders: Mapping[int, str] = {}
    """The leader of each partition; partitions without a leader are absent."""
    moving: frozenset[int] = frozenset()
    """Partitions whose peers are changing."""


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """A user's choice for one partition: a preference list under SemiAuto, the exact set under Customized."""

    stores: tuple[str, ...]
    leader: str | None = None
    """The preferred leader; None is the first of `stores`."""


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """The move of one replica; `source` is None if a replica is added, `target` is None if one is removed."""

    partition: int
    source: str | None
    target: str | None
    reason: str
