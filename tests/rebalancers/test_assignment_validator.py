"""The validator: every rule, by an assignment that violates only that rule."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from evenkeel.errors import RebalancerError
from evenkeel.model.views import Assignment, Placement, StoresView, StoreView, TableView
from evenkeel.rebalancers.assignment_validator import validate

TABLE = TableView(name="t", partitions=2, replicas=3, consensus_size=3, placement=Placement(max_per_store=2))
STORES = StoresView.of(
    *(StoreView(name=name) for name in "abc"),
    StoreView(name="lost", live=False),
    StoreView(name="drain", draining=True),
    StoreView(name="idle", weight=0),
    StoreView(name="full", capacity=7, used_by_others=7),
    StoreView(name="tight", capacity=8, used_by_others=7),
)
GOOD = [["a", "b", "c"], ["b", "c", "a"]]


def assignment(rows: Sequence[Sequence[str]], *, voters: int = 3) -> Assignment:
    return Assignment.of([list(row) for row in rows], voters=voters)


def refused(found: Assignment, table: TableView = TABLE) -> str:
    with pytest.raises(RebalancerError) as caught:
        validate(table, STORES, found)
    return str(caught.value)


def test_good() -> None:
    """A valid assignment passes."""
    validate(TABLE, STORES, assignment(GOOD))


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([], "table t has 2 partitions, but the assignment has 0 rows"),
        (GOOD[:1], "table t has 2 partitions, but the assignment has 1 rows"),
        ([*GOOD, GOOD[0]], "table t has 2 partitions, but the assignment has 3 rows"),
        ([GOOD[0], []], "partition 1 has no stores"),
        ([[], []], "partition 0, 1 has no stores"),
        ([GOOD[0], ["a", "b"]], "partition 1 has 2 stores; allowed: 3, the replicas of table t"),
        ([["a", "b", "c", "tight"], GOOD[1]], "partition 0 has 4 stores; allowed: 3, the replicas of table t"),
        ([["a", "b", "a"], GOOD[1]], "partition 0 names a store twice"),
        ([["a", "b", "nope"], GOOD[1]], "partition 0 names store nope, which does not exist"),
        ([["a", "b", "lost"], GOOD[1]], "partition 0 goes to store lost, which is lost"),
        ([["a", "b", "drain"], GOOD[1]], "partition 0 goes to store drain, which is draining"),
        ([["a", "b", "idle"], GOOD[1]], "partition 0 goes to store idle, which has weight 0"),
        (
            [["a", "b", "full"], GOOD[1]],
            "store full would hold 1 replicas of table t, but has room for 0 (its capacity less what other tables use,"
            " and maxPerStore)",
        ),
        (
            [["a", "b", "tight"], ["a", "b", "tight"]],
            "store tight would hold 2 replicas of table t, but has room for 1 (its capacity less what other tables use,"
            " and maxPerStore)",
        ),
    ],
)
def test_broken(rows: list[list[str]], problem: str) -> None:
    """Each rule has its own message, which names partition and store."""
    assert refused(assignment(rows)) == problem


def test_empty_assignments_are_refused() -> None:
    """An empty assignment is refused in every form."""
    assert "has no stores" in refused(Assignment((), np.full((2, 0), -1, dtype=np.int32), voters=3))
    assert "has no stores" in refused(Assignment(("a",), np.full((2, 3), -1, dtype=np.int32), voters=3))


def test_voters() -> None:
    """Exactly consensusSize replicas vote, so that the leader is always a voter."""
    assert refused(assignment(GOOD, voters=0)) == (
        "the assignment has 0 voters per partition; allowed: 3, the consensusSize of table t"
    )


def test_max_per_store() -> None:
    """The table's own cap is checked."""
    table = TableView(name="t", partitions=2, replicas=3, consensus_size=3, placement=Placement(max_per_store=1))
    assert refused(assignment(GOOD), table).startswith("store a would hold 2 replicas of table t, but has room for 1")


def test_selector() -> None:
    """Stores without the selector's labels are refused."""
    table = TableView(
        name="t", partitions=2, replicas=3, consensus_size=3, placement=Placement(store_selector={"disk": "nvme"})
    )
    assert "lacks the label disk=nvme of the store selector" in refused(assignment(GOOD), table)


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([[0, 1, 3], [0, 1, 2]], "partition 0 points at a store outside the assignment's list"),
        ([[0, 1, -2], [0, 1, 2]], "partition 0 points at a store outside the assignment's list"),
        ([[0, 1, 2], [0, -1, 2]], "partition 1 has a gap before its last store"),
    ],
)
def test_matrix(rows: list[list[int]], problem: str) -> None:
    """Indexes out of range, and gaps, are refused."""
    assert refused(Assignment("abc", np.array(rows, dtype=np.int32), voters=3)) == problem


def test_flat_matrix() -> None:
    """A matrix of another shape is refused."""
    assert "1 dimensions" in refused(Assignment("abc", np.array([0, 1], dtype=np.int32), voters=3))


def test_repeated_names() -> None:
    """A store that is listed under two indexes is detected as a duplicate."""
    rows = np.array([[0, 1, 2], [0, 1, 2]], dtype=np.int32)
    assert refused(Assignment(("a", "b", "a"), rows, voters=3)) == (
        "the assignment's list of stores names a store twice"
    )


def test_many_partitions_are_summed_up() -> None:
    """A message names the first few partitions."""
    table = TableView(name="t", partitions=100, replicas=1, consensus_size=1)
    assert refused(assignment([["lost"]] * 100, voters=1), table) == (
        "partition 0, 1, 2, 3, 4 and 95 more goes to store lost, which is lost"
    )


def test_keeping() -> None:
    """If users choose stores, an unusable store may keep a partition, but not gain one."""
    before = assignment([["a", "b", "lost"], ["a", "b", "c"]])
    validate(TABLE, STORES, before, keeps=before)
    with pytest.raises(RebalancerError, match="partition 1 goes to store lost"):
        validate(TABLE, STORES, assignment([["a", "b", "lost"], ["a", "b", "lost"]]), keeps=before)
