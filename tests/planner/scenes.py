"""Short constructors for stores, tables and plans."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from evenkeel.model.views import Assignment, CurrentState, Placement, StoresView, StoreView, TableView
from evenkeel.planner import plan


def table(partitions: int, replicas: int = 3, *, voters: int | None = None, **placement: object) -> TableView:
    return TableView(
        name="orders",
        partitions=partitions,
        replicas=replicas,
        consensus_size=voters or replicas,
        placement=Placement(**placement),  # type: ignore[arg-type]
    )


def stores(count: int, zones: int = 1, /, **changed: Mapping[str, object]) -> StoresView:
    """s00, s01, ... in zones a, b, ... in turn; keyword arguments override fields of single stores."""
    views = []
    for i in range(count):
        fields: dict[str, object] = {"name": f"s{i:02}", "zone": "abcdefgh"[i % zones]}
        views.append(StoreView(**{**fields, **changed.get(f"s{i:02}", {})}))  # type: ignore[arg-type]
    return StoresView.of(*views)


def planned(
    of: TableView, on: StoresView, previous: Assignment | None = None, current: CurrentState | None = None
) -> Assignment:
    return plan(of, previous or Assignment.empty(of.partitions), on, current or CurrentState())


def held(assignment: Assignment) -> Counter[str]:
    return Counter(name for p in range(assignment.partitions) for name in assignment.stores_of(p))


def led(assignment: Assignment) -> Counter[str]:
    return Counter(assignment.stores_of(p)[0] for p in range(assignment.partitions))


def spread(counts: Counter[str], on: StoresView) -> int:
    """Return the difference between the most and the least loaded store, including empty ones."""
    numbers = [counts[store.name] for store in on.stores]
    return max(numbers) - min(numbers)
