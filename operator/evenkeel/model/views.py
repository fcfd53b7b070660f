"""Immutable value types of the hot paths: what planner and rebalancers read and answer.

An `Assignment` is one integer matrix, because a million partitions as Python objects would take gigabytes and seconds.
Row p lists partition p's replicas as indexes into `stores`, padded with -1 at the end. Order carries meaning:
column 0 is the preferred leader, the first `voters` entries are voters and the rest are learners.
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
"""Who decides where a table's replicas go."""

SLICE = 64
"""Partitions per PartitionAssignment: few objects, and every one of them fits etcd and a screen."""


def slice_name(table: str, partition: int) -> str:
    """Name of the PartitionAssignment that speaks of `partition`."""
    return f"{table}-{partition // SLICE}"


class StoreView(msgspec.Struct, frozen=True, kw_only=True):
    """One store as the planner sees it."""

    name: str
    volume: str = ""
    zone: str = ""
    weight: float = 1.0
    """Share of replicas and leaders relative to the other stores'; 0 takes none."""
    capacity: int | None = None
    """Most replicas of all tables together that the store may hold; None is unlimited."""
    used_by_others: int = 0
    """Replicas of other tables that count against `capacity`."""
    live: bool = True
    """False once the store is lost for longer than `lostAfter`: its replicas are re-placed."""
    draining: bool = False
    """True while everything is to move away."""
    labels: Mapping[str, str] = {}

    @property
    def usable(self) -> bool:
        """Whether the store may receive or keep replicas."""
        return self.live and not self.draining


class StoresView(msgspec.Struct, frozen=True):
    """All known stores, ordered by name whatever order they came in."""

    stores: tuple[StoreView, ...]

    @classmethod
    def of(cls, *stores: StoreView) -> StoresView:
        """Sort by name, so that a plan never depends on the order of discovery."""
        return cls(tuple(sorted(stores, key=lambda store: store.name)))

    def live(self) -> tuple[StoreView, ...]:
        """The stores that may hold replicas."""
        return tuple(store for store in self.stores if store.usable)


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """The Table's `placement`: where replicas may go."""

    zone_spread: bool = True
    store_selector: Mapping[str, str] = {}
    """Only stores carrying all of these labels."""
    max_per_store: int | None = None
    """Most replicas of this table on one store."""


class TableView(msgspec.Struct, frozen=True, kw_only=True):
    """What a rebalancer needs to know of a table."""

    name: str
    partitions: int
    replicas: int
    consensus_size: int
    placement: Placement = Placement()
    config: Mapping[str, object] = {}
    """The Table's `rebalancer.config`, as the user wrote it."""


class Assignment:
    """Which stores hold which partition; see the module's docstring for what a row means."""

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
        """Build from names: `rows[p]` lists partition p's stores, preferred leader first."""
        names = sorted(set(stores).union(*rows)) if rows else sorted(stores)
        index = {name: i for i, name in enumerate(names)}
        width = max((len(row) for row in rows), default=0)
        matrix = np.full((len(rows), width), NO_STORE, dtype=np.int32)
        for p, row in enumerate(rows):
            matrix[p, : len(row)] = [index[name] for name in row]
        return cls(names, matrix, voters=voters)

    @classmethod
    def empty(cls, partitions: int) -> Assignment:
        """Nothing assigned yet: what a new table's planning starts from."""
        return cls((), np.full((partitions, 0), NO_STORE, dtype=np.int32), voters=0)

    @property
    def partitions(self) -> int:
        """Number of partitions."""
        return int(self.rows.shape[0])

    def stores_of(self, partition: int) -> tuple[str, ...]:
        """The partition's stores, preferred leader first, voters before learners."""
        return tuple(self.stores[i] for i in self.rows[partition] if i != NO_STORE)

    def leader_of(self, partition: int) -> str | None:
        """The preferred leader, or None for an empty row."""
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
    """What is true at this moment, as opposed to what was last intended."""

    leaders: Mapping[int, str] = {}
    """Partition -> store that leads it now; partitions without a leader are absent."""
    moving: frozenset[int] = frozenset()
    """Partitions whose change of peers is under way."""


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """A user's word on one partition: a preference list under SemiAuto, the exact set under Customized."""

    stores: tuple[str, ...]
    leader: str | None = None
    """Who should lead; the first of `stores` where it is None."""


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """One replica's way: `source` is None where a replica is added, `target` is None where one is removed."""

    partition: int
    source: str | None
    target: str | None
    reason: str
