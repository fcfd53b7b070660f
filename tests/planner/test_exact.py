"""The planner against the oracle, on thousands of random small problems."""

from __future__ import annotations

import math

import pytest

from evenkeel.errors import PlanningError
from evenkeel.model.views import Assignment
from evenkeel.planner import plan
from tests.planner.cases import Case, case
from tests.planner.oracle import Oracle

CHUNK = 100


@pytest.mark.parametrize("first", range(0, 2000, CHUNK))
def test_every_level_of_the_objective_equals_an_independent_optimum(first: int) -> None:
    """Zones, shares, moves, leaders, roles and transfers each reach the oracle's optimum."""
    for seed in range(first, first + CHUNK):
        check(case(seed), seed)


def check(problem: Case, seed: int) -> None:
    oracle = Oracle(*problem)
    if not oracle.feasible:
        with pytest.raises(PlanningError, match="table t: "):
            plan(*problem)
        return
    target = plan(*problem)
    check_rules(oracle, target)
    moves = sum(
        name not in oracle.previous.stores_of(p) for p in range(target.partitions) for name in target.stores_of(p)
    )
    assert moves == oracle.fewest_moves(), f"seed {seed}"
    bounds = oracle.leader_bounds(target)
    assert oracle.measured(target, *bounds) == oracle.leadership(target, *bounds), f"seed {seed}"


def check_rules(oracle: Oracle, target: Assignment) -> None:
    rows = [target.stores_of(p) for p in range(target.partitions)]
    assert all(len(set(row)) == oracle.table.replicas == len(row) for row in rows)
    held = {name: sum(name in row for row in rows) for name in oracle.zone}
    assert sum(held.values()) == oracle.needed, "a store that must hold nothing holds something"
    for name, share in oracle.shares.items():
        assert math.floor(share) <= held[name] <= math.ceil(share)
    spread = [[sum(oracle.zone[name] == zone for name in row) for zone in oracle.zones] for row in rows]
    assert sum(k * k for row in spread for k in row) == oracle.zone_cost


@pytest.mark.parametrize("seed", range(200))
def test_the_oracle_finds_the_same_zone_optimum_in_two_ways(seed: int) -> None:
    """Counting zone totals agrees with a linear program over single replicas."""
    oracle = Oracle(*case(seed))
    if oracle.feasible:
        oracle.zone_totals()
        assert oracle.lowest_zone_cost() == oracle.zone_cost
