"""The hard rules: which stores may hold replicas of a table, and how many each.

They are applied before any balancing. If a table cannot satisfy them, it is not planned: the caller gets a
`PlanningError` with the numbers and the remedy, and the present assignment stays.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from evenkeel.errors import PlanningError
from evenkeel.model.views import StoresView, StoreView, TableView

__all__ = ["Candidates", "candidates", "cap", "exclusion"]

_LISTED = 8


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """The stores that may hold replicas, as arrays; the position in `index` is the store's number in the planner."""

    names: tuple[str, ...]
    """The names of all known stores, including unusable ones; an assignment's indexes refer to them."""
    index: NDArray[np.int32]
    """Each candidate's index in `names`."""
    zone: NDArray[np.int32]
    room: NDArray[np.int64]
    """The maximum number of replicas of this table on each candidate; never more than the number of partitions."""
    weight: NDArray[np.object_]
    """Weights as proportional integers, so that a share of exactly 58 is not 57.999."""

    def numbers(self, names: tuple[str, ...]) -> NDArray[np.int32]:
        """Return the candidates' numbers of these stores, -1 for stores that are not candidates."""
        number = {self.names[at]: i for i, at in enumerate(self.index.tolist())}
        return np.array([number.get(name, -1) for name in names] + [-1], dtype=np.int32)


def cap(store: StoreView, table: TableView) -> int | None:
    """Return how many replicas of the table the store may hold by its cap and the table's; None means unlimited."""
    caps = [] if store.capacity is None else [max(0, store.capacity - store.used_by_others)]
    if table.placement.max_per_store is not None:
        caps.append(table.placement.max_per_store)
    return min(caps, default=None)


def exclusion(store: StoreView, table: TableView) -> str | None:
    """Return why the store may hold no replica of the table, as a predicate; None if it may."""
    if not store.live:
        return "is lost"
    if store.draining:
        return "is draining"
    if store.weight == 0:
        return "has weight 0"
    for label, value in sorted(table.placement.store_selector.items()):
        if store.labels.get(label) != value:
            return f"lacks the label {label}={value} of the store selector"
    if cap(store, table) == 0:
        return "has no room under its cap"
    return None


def candidates(table: TableView, stores: StoresView) -> Candidates:
    """Apply the hard rules; raise `PlanningError` if no assignment can satisfy them."""
    _check(table, stores)
    ordered = sorted(stores.stores, key=lambda store: store.name)
    index = [i for i, store in enumerate(ordered) if exclusion(store, table) is None]
    usable = [ordered[i] for i in index]
    _check_count(table, ordered, usable)
    room = [_room(store, table) for store in usable]
    _check_room(table, usable, room)
    return Candidates(
        names=tuple(store.name for store in ordered),
        index=np.array(index, dtype=np.int32),
        zone=_zone_numbers(table, usable),
        room=np.array(room, dtype=np.int64),
        weight=_exact_weights([store.weight for store in usable]),
    )


def _room(store: StoreView, table: TableView) -> int:
    limit = cap(store, table)
    return table.partitions if limit is None else min(limit, table.partitions)


def _zone_numbers(table: TableView, usable: list[StoreView]) -> NDArray[np.int32]:
    if not table.placement.zone_spread:
        return np.zeros(len(usable), dtype=np.int32)
    number = {zone: i for i, zone in enumerate(sorted({store.zone for store in usable}))}
    return np.array([number[store.zone] for store in usable], dtype=np.int32)


def _exact_weights(weights: list[float]) -> NDArray[np.object_]:
    # A weight is the decimal that the user wrote: 0.3 is three times 0.1, which is not true for floats.
    exact = {weight: Fraction(str(weight)) for weight in set(weights)}
    scale = math.lcm(*(fraction.denominator for fraction in exact.values()))
    divisor = math.gcd(*(int(fraction * scale) for fraction in exact.values()))
    whole = {weight: int(fraction * scale) // divisor for weight, fraction in exact.items()}
    return np.array([whole[weight] for weight in weights], dtype=object)


def _check(table: TableView, stores: StoresView) -> None:
    if table.partitions < 1 or table.replicas < 1:
        raise PlanningError(
            f"table {table.name}: partitions and replicas must be at least 1,"
            f" but are {table.partitions} and {table.replicas}"
        )
    if not 1 <= table.consensus_size <= table.replicas:
        raise PlanningError(
            f"table {table.name}: consensusSize must be between 1 and replicas ({table.replicas}),"
            f" but is {table.consensus_size}"
        )
    _check_stores(table, stores)


def _check_stores(table: TableView, stores: StoresView) -> None:
    seen: set[str] = set()
    for store in stores.stores:
        if store.name in seen:
            raise PlanningError(f"table {table.name}: store {store.name} is listed twice; list each store once")
        if not (math.isfinite(store.weight) and store.weight >= 0):
            raise PlanningError(
                f"table {table.name}: store {store.name} has weight {store.weight}; give it a number of 0 or more"
            )
        seen.add(store.name)


def _check_count(table: TableView, ordered: list[StoreView], usable: list[StoreView]) -> None:
    if len(usable) >= table.replicas:
        return
    excluded = [f"{store.name} {why}" for store in ordered if (why := exclusion(store, table))]
    because = f": {_listed(excluded)}" if excluded else ""
    raise PlanningError(
        f"table {table.name}: replicas {table.replicas} need {table.replicas} stores but only {len(usable)}"
        f" {'is' if len(usable) == 1 else 'are'} usable{because}; add a store or lower replicas"
    )


def _check_room(table: TableView, usable: list[StoreView], room: list[int]) -> None:
    needed = table.partitions * table.replicas
    if sum(room) >= needed:
        return
    capped = [f"{store.name} {count}" for store, count in zip(usable, room, strict=True) if count < table.partitions]
    raise PlanningError(
        f"table {table.name}: {table.partitions} partitions x {table.replicas} replicas = {needed} do not fit:"
        f" the {len(usable)} usable stores have room for {sum(room)}, each partition at most once per store"
        f" (caps: {_listed(capped)}); raise capacity or maxPerStore, add a store, or lower replicas"
    )


def _listed(items: list[str]) -> str:
    rest = len(items) - _LISTED
    return ", ".join(items[:_LISTED]) + (f" and {rest} more" if rest > 0 else "")
