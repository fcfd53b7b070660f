"""The planner's targets, compared with rendezvous hashing on the same input in the same run.

`ratio` is value divided by reference; the reference is the result of rendezvous hashing, or the target. Times are
medians of interleaved runs. The million partitions are planned in a separate process; its peak memory includes the
interpreter, the initial plan, and the plan for one more store.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench._planner_cases import rendezvous, spread, store_views, table_view
from bench.report import Row
from evenkeel.model.views import Assignment, CurrentState, StoresView, TableView
from evenkeel.planner import changes, plan

RUNS = 7


def rows() -> Iterator[Row]:
    yield from _one_more_store(1_000, 50, milliseconds=None)
    yield from _one_more_store(10_000, 100, milliseconds=30)
    yield from _other_events()
    yield from _million()


def _one_more_store(partitions: int, stores: int, *, milliseconds: float | None) -> Iterator[Row]:
    """Yield spread, moves and time for one joining store."""
    table, fewer, more = table_view(partitions), store_views(stores), store_views(stores + 1)
    case = f"{partitions:,} x 3, {stores} + 1 stores"
    before = _plan(table, Assignment.empty(partitions), fewer)
    after = _plan(table, before, more)
    hashed_before, hashed_after = rendezvous(table, fewer), rendezvous(table, more)
    ours, theirs = _medians(lambda: _plan(table, before, more), lambda: rendezvous(table, more))
    yield _row(f"{case}: spread vs rendezvous; lower is better", spread(after), "replicas", spread(hashed_after))
    moves = changes(hashed_before, hashed_after).moves
    yield _row(f"{case}: moves vs rendezvous; lower is better", changes(before, after).moves, "moves", moves)
    yield _row(f"{case}: time vs rendezvous; lower is better", ours, "ms", theirs)
    if milliseconds is not None:
        yield _row(f"{case}: time vs target; target <= 1", ours, "ms", milliseconds)


def _other_events() -> Iterator[Row]:
    """Yield times of other events, for 10,000 x 3 on 100 stores in five zones, with a target of one second."""
    table, stores = table_view(10_000), store_views(100, zones=5)
    before = _plan(table, Assignment.empty(10_000), stores)
    events: dict[str, Callable[[], Assignment]] = {
        "new table": lambda: _plan(table, Assignment.empty(10_000), stores),
        "drain one": lambda: _plan(table, before, store_views(100, zones=5, draining=[0])),
        "lose a zone": lambda: _plan(table, before, store_views(100, zones=5, lost_zone=0)),
        "replicas 3 -> 5": lambda: _plan(table_view(10_000, 5), before, stores),
    }
    for name, event in events.items():
        (median,) = _medians(event)
        yield _row(f"10,000 x 3, 100 stores, 5 zones, {name}: time vs target; target <= 1", median, "ms", 1000)


def _million() -> Iterator[Row]:
    command = [sys.executable, "-m", "bench._planner_million", "1000000", "10000"]
    root = Path(__file__).parent.parent
    answer = json.loads(subprocess.run(command, cwd=root, check=True, capture_output=True).stdout)
    case = "1,000,000 x 3, 10,000 + 1 stores"
    yield _row(f"{case}: spread vs target; target <= 1", answer["spread"], "replicas", 1)
    yield _row(f"{case}: moves vs minimum; target 1", answer["moves"], "moves", 3_000_000 // 10_001)
    yield _row(f"{case}: time vs target; target <= 1", answer["one_more"], "ms", 2000)
    yield _row(f"{case}: peak memory vs target; target <= 1", answer["peak"], "MiB", 1024)
    yield Row("planner", "1,000,000 x 3, 10,000 stores, new table: time; lower is better", answer["fresh"], "ms")


def _plan(table: TableView, previous: Assignment, stores: StoresView) -> Assignment:
    return plan(table, previous, stores, CurrentState())


def _medians(*actions: Callable[[], Assignment]) -> list[float]:
    """Return the median milliseconds of each action, run in turn."""
    taken: list[list[float]] = [[] for _ in actions]
    for _ in range(RUNS):
        for times, action in zip(taken, actions, strict=True):
            began = time.perf_counter()
            action()
            times.append(1000 * (time.perf_counter() - began))
    return [statistics.median(times) for times in taken]


def _row(case: str, value: float, unit: str, reference: float) -> Row:
    return Row("planner", case, value, unit, reference, value / reference)
