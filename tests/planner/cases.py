"""Random small planning problems from a seed: unequal zones, weights, caps, drained and lost stores."""

from __future__ import annotations

import random

from evenkeel.model.views import Assignment, CurrentState, Placement, StoresView, StoreView, TableView

Case = tuple[TableView, Assignment, StoresView, CurrentState]


def case(seed: int) -> Case:
    """Return one problem; about one in eight has no solution."""
    rng = random.Random(seed)
    partitions, replicas = rng.randint(1, 6), rng.randint(1, 4)
    stores = [_store(rng, f"s{i}", partitions) for i in range(rng.randint(replicas + (rng.random() > 0.1), 7))]
    table = TableView(
        name="t",
        partitions=partitions,
        replicas=replicas,
        consensus_size=rng.randint(1, replicas) if rng.random() < 0.5 else replicas,
        placement=Placement(
            zone_spread=rng.random() < 0.8,
            store_selector={"disk": "ssd"} if rng.random() < 0.1 else {},
            max_per_store=rng.randint((partitions + 1) // 2, partitions) if rng.random() < 0.2 else None,
        ),
    )
    names = [store.name for store in stores] + ["gone"]
    previous = _previous(rng, table, names)
    leaders = {p: rng.choice(row) for p in range(partitions) if (row := previous.stores_of(p)) and rng.random() < 0.3}
    moving = frozenset(p for p in range(partitions) if rng.random() < 0.1)
    return table, previous, StoresView.of(*stores), CurrentState(leaders=leaders, moving=moving)


def _store(rng: random.Random, name: str, partitions: int) -> StoreView:
    return StoreView(
        name=name,
        zone=rng.choice("aaabbcd"),
        weight=rng.choice([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.3, 2.0, 2.5, 0.0]),
        capacity=rng.randint(2, partitions + 3) if rng.random() < 0.25 else None,
        used_by_others=rng.randint(0, 2),
        live=rng.random() > 0.05,
        draining=rng.random() < 0.05,
        labels={"disk": rng.choice(["ssd", "ssd", "ssd", "hdd"])},
    )


def _previous(rng: random.Random, table: TableView, names: list[str]) -> Assignment:
    kind = rng.random()
    if kind < 0.1:
        return Assignment.empty(table.partitions)
    few = names[: rng.randint(1, len(names))]
    rows = []
    for _ in range(table.partitions):
        width = table.replicas if kind < 0.6 else rng.randint(0, table.replicas + 2)
        rows.append(rng.sample(few, min(width, len(few))))
    return Assignment.of(rows, voters=rng.randint(1, max(1, table.replicas)))


def larger_case(seed: int) -> Case:
    """Return a problem of some dozens of partitions after a change of stores, zones, weights or replicas."""
    rng = random.Random(seed)
    partitions, replicas, count = rng.randint(20, 60), rng.randint(2, 5), rng.randint(7, 14)
    zones = rng.choice(["a", "ab", "abc", "abcd", "abcde", "abbbc"])
    stores = [
        StoreView(
            name=f"s{i:02}",
            zone=rng.choice(zones),
            weight=rng.choice([1.0, 1.0, 1.0, 1.5, 2.0]),
            capacity=rng.randint(partitions // 2, partitions) if rng.random() < 0.15 else None,
        )
        for i in range(count)
    ]
    names = [store.name for store in stores][rng.randint(0, 2) : count - rng.randint(0, 2)]
    width = min(len(names), max(1, replicas + rng.choice([-2, 0, 0, 0, 2])))
    rows = [rng.sample(names, width) for _ in range(partitions)]
    table = TableView(name="t", partitions=partitions, replicas=replicas, consensus_size=replicas)
    return table, Assignment.of(rows, voters=width), StoresView.of(*stores), CurrentState()
