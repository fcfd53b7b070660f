"""The reason of each move, in words.

Reasons are derived from the assignments before and after, so they work for any rebalancer. A reason is, in this order:
why the replica must leave its store, what its partition lacked, or which store was above or below its share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from evenkeel.errors import PlanningError
from evenkeel.model.views import Assignment, Move, StoresView, StoreView, TableView
from evenkeel.planner.balanced_plan import shares_of
from evenkeel.planner.counted_changes import changed_partitions
from evenkeel.planner.placement_rules import candidates, cap, exclusion

__all__ = ["moves"]


def moves(
    previous: Assignment, target: Assignment, *, table: TableView, stores: StoresView, limit: int | None = None
) -> list[Move]:
    """Return the replicas that are added, removed or moved, by partition; at most `limit`."""
    scene = _Scene.of(previous, table, stores)
    found: list[Move] = []
    for partition in changed_partitions(previous, target).tolist():
        found += scene.moves(partition, previous.stores_of(partition), target.stores_of(partition))
        if limit is not None and len(found) >= limit:
            return found[:limit]
    return found


@dataclass(frozen=True)
class _Scene:
    """The stores and the table before the moves."""

    table: TableView
    stores: dict[str, StoreView]
    held: dict[str, int]
    share: dict[str, float]
    usual: int
    """The most common number of replicas per partition."""

    @classmethod
    def of(cls, previous: Assignment, table: TableView, stores: StoresView) -> _Scene:
        counts = np.bincount(previous.rows.ravel() + 1, minlength=len(previous.stores) + 1)[1:]
        widths = np.bincount((previous.rows >= 0).sum(axis=1), minlength=1)
        return cls(
            table=table,
            stores={store.name: store for store in stores.stores},
            held=dict(zip(previous.stores, counts.tolist(), strict=True)),
            share=_shares(table, stores),
            usual=int(widths.argmax()),
        )

    def moves(self, partition: int, before: tuple[str, ...], after: tuple[str, ...]) -> Iterator[Move]:
        leaving = [name for name in before if name not in after]
        coming = [name for name in after if name not in before]
        for source, target in self._pairs(leaving, coming):
            yield Move(
                partition=partition,
                source=source,
                target=target,
                reason=self._reason(partition, before, source, target),
            )

    def _pairs(self, leaving: list[str], coming: list[str]) -> Iterator[tuple[str | None, str | None]]:
        """Pair stores that leave with stores that come, within a zone if possible."""
        for source in list(leaving):
            nearby = next((name for name in coming if self._zone(name) == self._zone(source)), None)
            if nearby is not None:
                leaving.remove(source)
                coming.remove(nearby)
                yield source, nearby
        yield from zip(leaving, coming, strict=False)
        paired = min(len(leaving), len(coming))
        yield from ((source, None) for source in leaving[paired:])
        yield from ((None, target) for target in coming[paired:])

    def _zone(self, name: str) -> str | None:
        store = self.stores.get(name)
        return None if store is None else store.zone

    def _reason(self, partition: int, before: tuple[str, ...], source: str | None, target: str | None) -> str:
        if source is not None and (why := self._must_leave(source)):
            return why
        if source is None or target is None:
            return self._count_reason(partition, before)
        return (
            self._zone_reason(partition, before, source, target)
            or self._share_reason(source, target)
            or f"moved from {source} to {target} so that all stores meet their shares and all zones their limits"
        )

    def _must_leave(self, name: str) -> str | None:
        store = self.stores.get(name)
        if store is None:
            return f"{name} no longer exists"
        if why := exclusion(store, self.table):
            return f"{name} {why}"
        limit = cap(store, self.table)
        if limit is not None and self.held[name] > limit:
            return f"{name} is over its cap of {limit}: it held {self.held[name]}"
        return None

    def _count_reason(self, partition: int, before: tuple[str, ...]) -> str:
        if not before:
            return f"partition {partition} had no replica"
        if len(before) == self.usual != self.table.replicas:
            return f"replicas {self.usual} -> {self.table.replicas}"
        return f"partition {partition} had {len(before)} of {self.table.replicas} replicas"

    def _zone_reason(self, partition: int, before: tuple[str, ...], source: str, target: str) -> str | None:
        if not self.table.placement.zone_spread:
            return None
        zones = Counter(self._zone(name) for name in self._staying(before))
        there, here = zones[self._zone(source)], zones[self._zone(target)]
        if there < here + 2:
            return None
        return (
            f"zone {self._zone(source)} had {there} of partition {partition}'s replicas"
            f" and zone {self._zone(target)} {here or 'none'}"
        )

    def _staying(self, names: Iterable[str]) -> Iterator[str]:
        return (name for name in names if name in self.share)

    def _share_reason(self, source: str, target: str) -> str | None:
        lacks = target in self.share and self.held.get(target, 0) < self.share[target]
        if lacks and not self.held.get(target):
            return f"{target} joined: it held 0 and its share is {_number(self.share[target])}"
        if source in self.share and self.held[source] > self.share[source]:
            return f"{source} held {self.held[source]} and its share is {_number(self.share[source])}"
        if lacks:
            return f"{target} held {self.held[target]} and its share is {_number(self.share[target])}"
        return None


def _shares(table: TableView, stores: StoresView) -> dict[str, float]:
    try:
        allowed = candidates(table, stores)
    except PlanningError:
        # A rebalancer that ignores caps can still return targets; its moves then have no shares as a reason.
        return {}
    shares = shares_of(table, allowed)[1]
    return {allowed.names[at]: share for at, share in zip(allowed.index.tolist(), shares.exact.tolist(), strict=True)}


def _number(share: float) -> str:
    return f"{share:.1f}".removesuffix(".0")
