"""The properties of the bundled rebalancers, on tables and stores of all kinds."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.errors import PlanningError, RebalancerError
from evenkeel.model.views import Assignment, CurrentState, Placement, StoresView, StoreView, TableView
from evenkeel.planner.placement_rules import cap
from evenkeel.rebalancers.rebalancer_runner import BUNDLED, rebalance
from evenkeel.rebalancers.rendezvous import Rendezvous


def table(partitions: int = 12, replicas: int = 3, **more: object) -> TableView:
    voters = replicas - (replicas + 1) % 2
    return TableView(name="t", partitions=partitions, replicas=replicas, consensus_size=voters, **more)  # type: ignore[arg-type]


def stores(count: int, **more: object) -> StoresView:
    return StoresView.of(*(StoreView(name=f"s{i:02}", **more) for i in range(count)))  # type: ignore[arg-type]


def compute(name: str, view: TableView, where: StoresView, previous: Assignment | None = None) -> Assignment:
    before = previous or Assignment.empty(view.partitions)
    return asyncio.run(rebalance(view, class_name=name, previous=before, stores=where)).assignment


def held(assignment: Assignment) -> dict[str, int]:
    counts = np.bincount(assignment.rows[assignment.rows >= 0], minlength=len(assignment.stores))
    return {name: int(count) for name, count in zip(assignment.stores, counts, strict=True) if count}


def test_mod_rows() -> None:
    """Partition i is on the stores i, i+1 and i+2 modulo their number."""
    found = compute("mod", table(5), stores(4))
    assert [found.stores_of(p) for p in range(5)] == [
        ("s00", "s01", "s02"),
        ("s01", "s02", "s03"),
        ("s02", "s03", "s00"),
        ("s03", "s00", "s01"),
        ("s00", "s01", "s02"),
    ]


def test_mod_respects_no_cap() -> None:
    """With a cap that is too low, mod fails validation instead of exceeding the cap."""
    capped = StoresView.of(*stores(2).stores, StoreView(name="s02", capacity=1))
    with pytest.raises(RebalancerError, match=r"store s02 would hold 2 replicas of table t, but has room for 1"):
        compute("mod", table(6, 1), capped)


def test_rendezvous_is_the_same_everywhere() -> None:
    """Scores depend only on names: a fixed example, also in another interpreter with another hash seed."""
    found = compute("rendezvous", table(6, 2), stores(5))
    rows = [list(found.stores_of(p)) for p in range(6)]
    script = (
        "from evenkeel.model.views import *\n"
        "from evenkeel.rebalancers.rendezvous import Rendezvous\n"
        "stores = StoresView.of(*(StoreView(name=f's{i:02}') for i in range(5)))\n"
        "table = TableView(name='t', partitions=6, replicas=2, consensus_size=1)\n"
        "found = Rendezvous().compute(table, Assignment.empty(6), stores, CurrentState())\n"
        "print([list(found.stores_of(p)) for p in range(6)])"
    )
    out = subprocess.run(
        [sys.executable, "-c", script], env={"PYTHONHASHSEED": "12345"}, capture_output=True, text=True, check=True
    )
    assert out.stdout.strip() == str(rows)
    assert "; ".join(" ".join(row) for row in rows) == "s04 s00; s01 s00; s00 s03; s01 s00; s00 s02; s01 s00"


def test_rendezvous_joins_only_take() -> None:
    """A store that joins takes about its share from the others, and nothing moves between the others."""
    before = compute("rendezvous", table(3000), stores(9))
    after = compute("rendezvous", table(3000), stores(10))
    gained = 0
    for p in range(3000):
        new = set(after.stores_of(p)) - set(before.stores_of(p))
        assert new <= {"s09"}
        gained += len(new)
    assert 800 <= gained <= 1000


def test_rendezvous_weights() -> None:
    """A store of double weight leads about twice as often."""
    where = StoresView.of(*stores(4).stores, StoreView(name="big", weight=2.0))
    found = compute("rendezvous", table(6000, 1), where)
    counts = held(found)
    assert 1900 <= counts.pop("big") <= 2100
    assert all(900 <= count <= 1100 for count in counts.values())


def test_rendezvous_zones() -> None:
    """A partition's replicas are spread over zones as evenly as possible."""
    zones = ["a", "a", "a", "a", "b", "c"]
    where = StoresView.of(*(StoreView(name=f"s{i}", zone=zone) for i, zone in enumerate(zones)))
    zone_of = {store.name: store.zone for store in where.stores}
    found = compute("rendezvous", table(50), where)
    assert all({zone_of[name] for name in found.stores_of(p)} == {"a", "b", "c"} for p in range(50))
    loose = compute("rendezvous", table(50, placement=Placement(zone_spread=False)), where)
    assert not all({zone_of[name] for name in loose.stores_of(p)} == {"a", "b", "c"} for p in range(50))


def test_rendezvous_groups() -> None:
    """Tables of one group have the same placement; other tables do not."""

    def place(name: str, **config: object) -> Assignment:
        view = TableView(name=name, partitions=50, replicas=3, consensus_size=3, config=config)
        return compute("rendezvous", view, stores(9))

    assert place("a", group="g") == place("b", group="g")
    assert place("a") != place("b")


def test_rendezvous_caps() -> None:
    """Full stores are skipped; if too few stores are left, the error names the remedy."""
    capped = Placement(max_per_store=5)
    assert max(held(compute("rendezvous", table(10, 2), stores(5))).values()) == 7
    assert max(held(compute("rendezvous", table(10, 2, placement=capped), stores(5))).values()) == 5
    with pytest.raises(PlanningError, match=r"no stores with room for partition 2.*use the class balanced"):
        compute("rendezvous", table(3, 2, placement=Placement(max_per_store=2)), stores(3))


def test_pinned_ignores_newcomers() -> None:
    """A store that joins gets nothing."""
    before = compute("pinned", table(), stores(4))
    assert compute("pinned", table(), stores(5), before) == before


def test_pinned_starts_balanced() -> None:
    """A new table is placed as balanced would."""
    assert compute("pinned", table(), stores(4)) == compute("balanced", table(), stores(4))


def test_pinned_replaces_lost_replicas() -> None:
    """Only the lost store's replicas move; learners with data become voters, and the new replica is last."""
    view = TableView(name="t", partitions=1, replicas=5, consensus_size=3)
    before = Assignment.of([["s00", "s01", "s02", "s03", "s04"]], voters=3)
    lost = StoresView.of(StoreView(name="s00", live=False), *(StoreView(name=f"s{i:02}") for i in range(1, 7)))
    after = compute("pinned", view, lost, before)
    assert after.stores_of(0) == ("s01", "s02", "s03", "s04", "s05")


def test_pinned_shrinks_from_the_end() -> None:
    """With fewer replicas, the last of each row are removed."""
    before = Assignment.of([["s00", "s01", "s02"]] * 4, voters=3)
    after = compute("pinned", table(4, 1), stores(3), before)
    assert [after.stores_of(p) for p in range(4)] == [("s00",)] * 4


def test_pinned_lowered_cap() -> None:
    """A lowered cap moves only the excess."""
    before = Assignment.of([["s00"]] * 6, voters=1)
    view = table(6, 1, placement=Placement(max_per_store=4))
    after = compute("pinned", view, stores(3), before)
    assert [after.stores_of(p) for p in range(6)] == [("s00",)] * 4 + [("s01",), ("s02",)]


def test_pinned_fills_by_zone_and_load() -> None:
    """A hole is filled in the zone that lacks the partition, by the emptiest store for its weight."""
    where = StoresView.of(
        StoreView(name="a1", zone="a"),
        StoreView(name="a2", zone="a"),
        StoreView(name="b1", zone="b"),
        StoreView(name="b2", zone="b", weight=4.0),
        StoreView(name="gone", zone="b", live=False),
    )
    before = Assignment.of([["a1", "gone"], ["a1", "b1"], ["a1", "b2"]], voters=1)
    after = compute("pinned", table(3, 2), where, before)
    assert after.stores_of(0) == ("a1", "b2")


def test_pinned_dead_end() -> None:
    """If only moving other replicas would make room, pinned reports it."""
    where = StoresView.of(*stores(3, capacity=2).stores, StoreView(name="s03", live=False))
    before = Assignment.of([["s00", "s01"], ["s00", "s01"], ["s02", "s03"]], voters=1)
    with pytest.raises(
        PlanningError, match=r"pinned finds no store with room for partition 2; .* use the class balanced"
    ):
        compute("pinned", table(3, 2), where, before)
    assert compute("balanced", table(3, 2), where, before)


@st.composite
def problems(draw: st.DrawFn) -> tuple[TableView, StoresView, StoresView]:
    """Return a table, and stores before and after a change."""
    count = draw(st.integers(3, 8))
    replicas = draw(st.integers(1, 3))
    view = table(draw(st.integers(1, 12)), replicas, placement=Placement(zone_spread=draw(st.booleans())))
    kinds: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
        {
            "zone": st.sampled_from("abc"),
            "weight": st.sampled_from([1.0, 1.0, 2.0, 0.5]),
            "live": st.sampled_from([True, True, True, False]),
            "draining": st.sampled_from([False, False, False, True]),
        }
    )
    states = [draw(kinds) for _ in range(count)]
    before = StoresView.of(*(StoreView(name=f"s{i}", zone=state["zone"]) for i, state in enumerate(states)))
    after = StoresView.of(*(StoreView(name=f"s{i}", **state) for i, state in enumerate(states)))
    return view, before, after


@settings(max_examples=60, derandomize=True, deadline=None)
@given(problems(), st.sampled_from(sorted(BUNDLED)))
def test_answers_are_valid(problem: tuple[TableView, StoresView, StoresView], name: str) -> None:
    """After any change of stores a bundled rebalancer returns a valid assignment or raises PlanningError."""
    view, before, after = problem
    first = compute(name, view, before)
    usable = [store for store in after.stores if store.usable and cap(store, view) != 0]
    if len(usable) >= view.replicas:
        second = compute(name, view, after, first)
        assert compute(name, view, after, second) == second, "a second run finds nothing to do"
    else:
        with pytest.raises(PlanningError, match="usable"):
            compute(name, view, after, first)


def test_rendezvous_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Working in chunks, which bounds memory, does not change the result."""
    whole = compute("rendezvous", table(40), stores(5))
    monkeypatch.setattr("evenkeel.rebalancers.rendezvous._CHUNK", 7 * 5)
    chunked = Rendezvous().compute(table(40), Assignment.empty(40), stores(5), CurrentState())
    assert chunked == whole
