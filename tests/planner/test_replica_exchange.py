"""The exact search, started far from the optimum."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from evenkeel.errors import PlanningError
from evenkeel.planner.balanced_plan import problem_of
from evenkeel.planner.filled_replicas import fill
from evenkeel.planner.placement import fewest_moves, improve, newcomers, place
from evenkeel.planner.placement_problem import PlacementProblem, Rows, count
from evenkeel.planner.placement_rules import candidates
from evenkeel.planner.store_aims import wanted
from tests.planner.cases import Case, case, larger_case
from tests.planner.oracle import Program

CHUNK = 100


@pytest.mark.parametrize("first", range(5000, 5800, CHUNK))
def test_every_start_ends_at_the_same_cost(first: int) -> None:
    """From a placement that ignores the previous one, exchanges reach as few moves as planning does."""
    for seed in range(first, first + CHUNK):
        problem = problem_from(seed)
        if problem is not None:
            far = fill(problem, np.empty((problem.partitions, 0), np.int32), wanted(problem, nothing(problem)))
            best = improve(problem, far)
            check_valid(problem, best)
            assert moves(problem, best) == moves(problem, place(problem)), f"seed {seed}"


@pytest.mark.parametrize("first", range(6000, 7000, CHUNK))
def test_the_bound_is_never_above_the_optimum(first: int) -> None:
    """The lower bound of the moves is never above the optimum."""
    for seed in range(first, first + CHUNK):
        problem = problem_from(seed)
        if problem is not None:
            assert fewest_moves(problem) <= moves(problem, place(problem)), f"seed {seed}"


@pytest.mark.parametrize("seed", range(60))
def test_larger_placements_have_the_fewest_moves_too(seed: int) -> None:
    """If heuristics and bounds are used, a linear program finds no fewer moves."""
    problem = problem_from(seed, larger_case)
    if problem is not None:
        rows = place(problem)
        check_valid(problem, rows)
        assert moves(problem, rows) == fewest_by_program(problem)


def fewest_by_program(problem: PlacementProblem) -> int:
    program = Program()
    replica = [
        [program.variable(float(s not in row)) for s in range(problem.stores)] for row in problem.previous.tolist()
    ]
    for row in replica:
        program.constrain([(x, 1.0) for x in row], problem.replicas, problem.replicas)
        for z in range(problem.zones):
            inside = [(x, 1.0) for s, x in enumerate(row) if problem.zone[s] == z]
            program.constrain(inside, problem.zone_lowest[z], problem.zone_highest[z])
    for s in range(problem.stores):
        program.constrain([(row[s], 1.0) for row in replica], problem.lowest[s], problem.highest[s])
    cost = program.solve()
    assert cost is not None
    return round(cost)


def problem_from(seed: int, make: Callable[[int], Case] = case) -> PlacementProblem | None:
    table, previous, stores, current = make(seed)
    try:
        return problem_of(table, previous, candidates(table, stores), current)
    except PlanningError:
        return None


def nothing(problem: PlacementProblem) -> np.ndarray:
    return np.zeros(problem.stores, dtype=np.int64)


def moves(problem: PlacementProblem, rows: Rows) -> int:
    return int(newcomers(rows, problem.previous).sum())


def check_valid(problem: PlacementProblem, rows: Rows) -> None:
    held = count(rows, problem.stores)
    assert ((problem.lowest <= held) & (held <= problem.highest)).all()
    for row in rows:
        assert len(set(row.tolist())) == problem.replicas
        inside = np.bincount(problem.zone[row], minlength=problem.zones)
        assert ((problem.zone_lowest <= inside) & (inside <= problem.zone_highest)).all()
