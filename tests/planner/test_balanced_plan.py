"""Balanced plans: balance, few moves, zones, weights, caps, roles, and error messages."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys

import numpy as np
import pytest

from evenkeel.errors import PlanningError
from evenkeel.model.views import Assignment, CurrentState, StoresView
from evenkeel.planner import changes
from tests.planner.scenes import held, led, planned, spread, stores, table


@pytest.mark.parametrize(("partitions", "count", "moves"), [(1000, 50, 58), (10_000, 100, 297)])
def test_one_more_store_costs_exactly_its_share(partitions: int, count: int, moves: int) -> None:
    """Only the new store's share moves, and all stores stay within one of each other."""
    before = planned(table(partitions), stores(count))
    after = planned(table(partitions), stores(count + 1), before)
    assert changes(before, after).moves == moves
    assert spread(held(after), stores(count + 1)) == 1
    assert spread(led(after), stores(count + 1)) <= 1


@pytest.mark.parametrize("zones", [1, 2, 3, 5])
def test_a_new_table_is_even_in_replicas_and_leaders(zones: int) -> None:
    """Replicas and leaders per store differ by at most one."""
    fresh = planned(table(500), stores(30, zones))
    assert spread(held(fresh), stores(30)) <= 1
    assert spread(led(fresh), stores(30)) <= 1


@pytest.mark.parametrize("seed", range(40))
def test_with_equal_weights_any_placement_allows_even_leaders(seed: int) -> None:
    """From any previous placement, replicas and leaders end within one of each other."""
    rng = random.Random(seed)
    on, partitions = stores(rng.randint(4, 12)), rng.randint(5, 60)
    names = [store.name for store in on.stores]
    before = Assignment.of([rng.sample(names[: rng.randint(3, len(names))], 3) for _ in range(partitions)], voters=3)
    after = planned(table(partitions), on, before)
    assert spread(held(after), on) <= 1
    assert spread(led(after), on) <= 1


@pytest.mark.parametrize("zones", [1, 3, 4])
@pytest.mark.parametrize("voters", [1, 3])
def test_planning_again_changes_nothing(zones: int, voters: int) -> None:
    """Planning again from a plan changes nothing."""
    on = stores(13, zones, s03={"weight": 2.5}, s07={"capacity": 9})
    first = planned(table(100, voters=voters), on)
    assert planned(table(100, voters=voters), on, first) == first


def test_a_drained_store_is_emptied_and_nothing_else_moves() -> None:
    """Only the drained store's replicas move."""
    before = planned(table(100), stores(10))
    on = stores(10, s04={"draining": True})
    after = planned(table(100), on, before)
    assert held(after)["s04"] == 0
    assert changes(before, after).moves == held(before)["s04"]


def test_a_lost_zone_is_replaced_by_the_others() -> None:
    """If one of three zones is lost, every partition has its replicas in the other two."""
    before = planned(table(90), stores(9, 3))
    lost: dict[str, dict[str, object]] = {name: {"live": False} for name in ("s00", "s03", "s06")}
    on = stores(9, 3, **lost)
    after = planned(table(90), on, before)
    zone = {store.name: store.zone for store in on.stores}
    assert all({zone[name] for name in after.stores_of(p)} == {"b", "c"} for p in range(90))
    assert changes(before, after).moves == 90


def test_more_replicas_only_add() -> None:
    """From three to five replicas no existing replica moves, and no leader changes."""
    before = planned(table(100), stores(10, 3))
    after = planned(table(100, 5), stores(10, 3), before)
    difference = changes(before, after)
    assert (difference.moves, difference.removals, difference.transfers) == (200, 0, 0)


def test_fewer_replicas_only_remove_and_leaders_stay() -> None:
    """From three to one replica nothing moves; the leaders remain."""
    before = planned(table(100), stores(10))
    after = planned(table(100, 1), stores(10), before)
    assert changes(before, after).moves == 0
    assert changes(before, after).transfers == 0


def test_zones_of_unequal_size_each_hold_one_replica_of_every_partition() -> None:
    """Zones have priority over shares: a zone of one store holds every partition once."""
    on = stores(6, 1, s00={"zone": "a"}, s01={"zone": "b"}, **{f"s0{i}": {"zone": "c"} for i in (2, 3, 4, 5)})
    counts = held(planned(table(40), on))
    assert [counts[f"s0{i}"] for i in range(6)] == [40, 40, 10, 10, 10, 10]


def test_zone_spread_can_be_turned_off() -> None:
    """Without zone spread the same stores share evenly."""
    on = stores(6, 1, s00={"zone": "a"}, s01={"zone": "b"}, **{f"s0{i}": {"zone": "c"} for i in (2, 3, 4, 5)})
    assert set(held(planned(table(40, zone_spread=False), on)).values()) == {20}


def test_weights_are_proportions() -> None:
    """A store of weight 2 holds and leads twice as much, and 0.3 is three times 0.1."""
    on = stores(4, s00={"weight": 0.1}, s01={"weight": 0.3}, s02={"weight": 0.2}, s03={"weight": 0.4})
    fresh = planned(table(100, 1), on)
    assert [held(fresh)[f"s0{i}"] for i in range(4)] == [10, 30, 20, 40]
    assert led(fresh) == held(fresh)


def test_weights_of_any_size_are_exact() -> None:
    """Weights as large as disks in bytes, or with nine decimals, do not overflow."""
    on = stores(3, s00={"weight": 2e12}, s01={"weight": 1e12}, s02={"weight": 1e12 + 0.001})
    assert sorted(held(planned(table(400, 1), on)).values()) == [100, 100, 200]


def test_caps_count_other_tables() -> None:
    """A store holds at most its capacity minus what others use, and at most the table's own cap."""
    on = stores(5, s00={"capacity": 20, "used_by_others": 15}, s01={"used_by_others": 99})
    counts = held(planned(table(40, 2, max_per_store=22), on))
    assert counts["s00"] == 5
    assert max(counts.values()) <= 22


def test_existing_voters_stay_voters_when_learners_join() -> None:
    """From three voting replicas to five with three voters, the added ones are learners."""
    before = planned(table(60), stores(9, 3))
    after = planned(table(60, 5, voters=3), stores(9, 3), before)
    assert after.voters == 3
    assert all(set(after.stores_of(p)[:3]) == set(before.stores_of(p)) for p in range(60))


def test_a_new_tables_voters_are_in_different_zones() -> None:
    """Losing a zone does not lose the majority of three voters."""
    on = stores(9, 3)
    zone = {store.name: store.zone for store in on.stores}
    fresh = planned(table(60, 5, voters=3), on)
    assert all(len({zone[name] for name in fresh.stores_of(p)[:3]}) == 3 for p in range(60))


def test_the_actual_leader_counts_more_than_the_preferred_one() -> None:
    """Present leaders stay if balance allows."""
    before = Assignment.of([["s00", "s01"], ["s01", "s00"]], voters=2)
    current = CurrentState(leaders={0: "s01", 1: "s00"})
    after = planned(table(2, 2), stores(2), before, current)
    assert [after.leader_of(p) for p in (0, 1)] == ["s01", "s00"]


def test_partitions_with_a_change_in_progress_move_last() -> None:
    """Of equally good moves, those of partitions with a change in progress are avoided."""
    before = planned(table(40, 1), stores(4))
    moving = frozenset(p for p in range(40) if p % 2)
    after = planned(table(40, 1), stores(5), before, CurrentState(moving=moving))
    moved = {p for p in range(40) if before.stores_of(p) != after.stores_of(p)}
    assert len(moved) == 8
    assert not moved & moving


def test_leaders_of_unknown_partitions_are_ignored() -> None:
    """The current state may have partitions that the table does not have."""
    late = CurrentState(leaders={5: "s00", 1: "s01"}, moving=frozenset({7}))
    assert planned(table(2, 2), stores(2), None, late).partitions == 2


def test_order_of_discovery_does_not_matter() -> None:
    """The order of stores, leaders and moving partitions does not affect the result."""
    on = stores(7, 3, s02={"weight": 2.0})
    before = planned(table(50), stores(6, 3))
    leaders = {p: before.stores_of(p)[1] for p in range(0, 50, 3)}
    expected = planned(table(50), on, before, CurrentState(leaders=leaders))
    for seed in range(5):
        rng = random.Random(seed)
        shuffled = StoresView(tuple(rng.sample(on.stores, len(on.stores))))
        mixed = dict(rng.sample(sorted(leaders.items()), len(leaders)))
        assert planned(table(50), shuffled, before, CurrentState(leaders=mixed)) == expected


def test_the_hash_seed_does_not_matter() -> None:
    """Processes with different hash seeds compute the same plan."""
    program = (
        "from tests.planner.scenes import planned, stores, table\n"
        "before = planned(table(200), stores(11, 3))\n"
        "after = planned(table(200, 5, voters=3), stores(13, 4), before)\n"
        "print(after.rows.tobytes().hex())"
    )
    answers = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "12345")
    }
    assert len(answers) == 1


def test_a_store_named_twice_in_a_row_counts_once() -> None:
    """A previous row with duplicate stores is corrected."""
    before = Assignment(("s00", "s01", "s02"), np.array([[0, 0, 1]], dtype=np.int32), voters=3)
    after = planned(table(1), stores(3), before)
    assert set(after.stores_of(0)) == {"s00", "s01", "s02"}


def test_many_small_zones_are_planned_as_well() -> None:
    """If every store is its own zone, the result is the same as for distinct stores."""
    on = StoresView.of(*(s for s in stores(40).stores))
    apart = stores(40, **{f"s{i:02}": {"zone": f"rack{i}"} for i in range(40)})
    before = planned(table(300), on)
    after = planned(table(300), apart, before)
    assert changes(before, after).moves == 0


@pytest.mark.parametrize(
    ("of", "on", "message"),
    [
        (
            table(10, 5),
            stores(6, s02={"draining": True}, s05={"live": False}),
            "table orders: replicas 5 need 5 stores but only 4 are usable: s02 is draining, s05 is lost;"
            " add a store or lower replicas",
        ),
        (
            table(10, 2, store_selector={"disk": "ssd"}),
            stores(3, s00={"weight": 0}, s01={"labels": {"disk": "ssd"}}, s02={"capacity": 4, "used_by_others": 4}),
            "table orders: replicas 2 need 2 stores but only 1 is usable: s00 has weight 0,"
            " s02 lacks the label disk=ssd of the store selector; add a store or lower replicas",
        ),
        (
            table(10, 3),
            stores(3, s00={"capacity": 12, "used_by_others": 12}),
            "table orders: replicas 3 need 3 stores but only 2 are usable: s00 has no room under its cap;"
            " add a store or lower replicas",
        ),
        (
            table(10, 2),
            stores(3, s00={"capacity": 3}, s01={"capacity": 4}),
            "table orders: 10 partitions x 2 replicas = 20 do not fit: the 3 usable stores have room for 17,"
            " each partition at most once per store (caps: s00 3, s01 4);"
            " raise capacity or maxPerStore, add a store, or lower replicas",
        ),
        (table(10), stores(0), "table orders: replicas 3 need 3 stores but only 0 are usable; add a store or lower"),
        (
            table(10, 3, voters=5),
            stores(5),
            "table orders: consensusSize must be between 1 and replicas (3), but is 5",
        ),
        (table(0), stores(3), "table orders: partitions and replicas must be at least 1, but are 0 and 3"),
        (
            table(3),
            stores(3, s01={"weight": float("nan")}),
            "table orders: store s01 has weight nan; give it a number of 0 or more",
        ),
        (
            table(3),
            StoresView(stores(2).stores + stores(1).stores),
            "table orders: store s00 is listed twice; list each store once",
        ),
    ],
)
def test_planning_errors_name_the_cause_and_the_remedy(of: object, on: StoresView, message: str) -> None:
    """The error names the rule, the numbers and the remedy."""
    with pytest.raises(PlanningError) as refused:
        planned(of, on)  # type: ignore[arg-type]
    assert str(refused.value).startswith(message)


def test_another_tables_assignment_is_refused() -> None:
    """Partition counts must agree."""
    with pytest.raises(PlanningError, match="it has 5 partitions but its previous assignment has 4"):
        planned(table(5), stores(3), Assignment.empty(4))


def test_long_lists_of_reasons_are_cut() -> None:
    """The error for a hundred lost stores lists only the first ones."""
    on = stores(20, **{f"s{i:02}": {"live": False} for i in range(19)})
    with pytest.raises(PlanningError, match=r"s07 is lost and 11 more; add a store"):
        planned(table(5), on)


def test_placements_are_scattered() -> None:
    """A store shares its partitions with many others, so that many stores replace its replicas."""
    fresh = planned(table(300), stores(30))
    partners = {frozenset(pair) for p in range(300) for pair in itertools.combinations(sorted(fresh.stores_of(p)), 2)}
    assert len(partners) > 0.7 * 30 * 29 / 2
