"""The lock manager of Apache Helix: six locks with one holder each, while stores A, B and C come and go."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from evenkeel.model.resource_loading import load_yaml
from evenkeel.model.table import Table
from evenkeel.model.views import Assignment, StoresView, StoreView
from evenkeel.rebalancers.rebalancer_process import Limits
from evenkeel.rebalancers.rebalancer_runner import rebalance
from tests.repository.tree import shown

EXAMPLES = Path(__file__).parents[2] / "examples"
PAGE = Path(__file__).parents[2] / "docs" / "rebalancers.md"

STORY = {
    "A alone": ("a", "a a a a a a"),
    "B joins": ("ab", "a b a b a b"),
    "C joins": ("abc", "a b c a b c"),
    "B fails": ("ac", "a c a c a c"),
    "B returns": ("abc", "a b c a b c"),
}
"""By event: the live stores after it, and the five tables of Helix's tutorial."""


def locks() -> Table:
    [table] = load_yaml((EXAMPLES / "lock-manager.yaml").read_text())
    assert isinstance(table, Table)
    return table


def stores(live: str) -> StoresView:
    return StoresView.of(*(StoreView(name=name, live=name in live) for name in "abc"))


def holders(assignment: Assignment) -> str:
    return " ".join(str(assignment.leader_of(lock)) for lock in range(6))


async def play(**how: Any) -> list[Assignment]:
    """Return the assignments after each event, each computed from the one before."""
    assignments = [Assignment.empty(6)]
    for live, _ in STORY.values():
        result = await rebalance(locks().view(), previous=assignments[-1], stores=stores(live), **how)
        assignments.append(result.assignment)
    return assignments


def moves(assignments: list[Assignment]) -> list[int]:
    return [
        sum(before.stores_of(lock) != after.stores_of(lock) for lock in range(6))
        for before, after in pairwise(assignments[1:])
    ]


@pytest.mark.parametrize(
    "how",
    [
        {"class_name": "mod"},
        {
            "mode": "UserDefined",
            "class_name": "evenkeel.rebalancers.bundled_rebalancers:Mod",
            "limits": Limits(seconds=100),
        },
        {
            "mode": "UserDefined",
            "class_name": locks().spec.rebalancer.class_name,
            "limits": Limits(path=(str(EXAMPLES / "rebalancers"),), seconds=100),
        },
    ],
    ids=["bundled", "bundled as a user's class", "the example's class"],
)
async def test_mod_matches_the_helix_tutorial(how: dict[str, Any]) -> None:
    """`mod` places every lock as in Helix's tutorial, as a bundled class and as a user's class."""
    assignments = await play(**how)
    assert [holders(assignment) for assignment in assignments[1:]] == [expected for _, expected in STORY.values()]
    assert moves(assignments) == [3, 4, 4, 4]


async def test_the_class_of_the_page(tmp_path: Path) -> None:
    """The class in docs/rebalancers.md places every lock as in Helix's tutorial."""
    [example] = shown(PAGE, "python")
    (tmp_path / "lock_manager.py").write_text(example)
    limits = Limits(path=(str(tmp_path),), seconds=100)
    assignments = await play(mode="UserDefined", class_name="lock_manager:LockManager", limits=limits)
    assert [holders(assignment) for assignment in assignments[1:]] == [expected for _, expected in STORY.values()]


async def test_balanced_moves_least() -> None:
    """`balanced` is as even as `mod` after each event, with the fewest moves."""
    assignments = await play(class_name="balanced")
    assert moves(assignments) == [3, 2, 2, 2]
    for assignment, (live, _) in zip(assignments[1:], STORY.values(), strict=True):
        held = [holders(assignment).split().count(store) for store in live]
        assert max(held) - min(held) == 0


async def test_pinned_moves_only_lost_replicas() -> None:
    """`pinned` moves a lock only if its holder fails."""
    assignments = await play(class_name="pinned")
    assert moves(assignments) == [0, 0, 0, 0]
    spread = Assignment.of([[store] for store in "abcabc"], voters=1)
    result = await rebalance(locks().view(), class_name="pinned", previous=spread, stores=stores("ac"))
    assert holders(result.assignment) == "a a c a c c"


async def test_rendezvous_moves_only_to_and_from_changed_stores() -> None:
    """With `rendezvous`, a store that joins only gains locks, and one that returns gets back exactly its own."""
    assignments = await play(class_name="rendezvous")
    alone, with_b, with_c, without_b, again = (holders(assignment).split() for assignment in assignments[1:])
    assert set(alone) == {"a"}
    assert all(after in (before, "b") for before, after in zip(alone, with_b, strict=True))
    assert all(after in (before, "c") for before, after in zip(with_b, with_c, strict=True))
    assert all(before == after for before, after in zip(with_c, without_b, strict=True) if before != "b")
    assert again == with_c
