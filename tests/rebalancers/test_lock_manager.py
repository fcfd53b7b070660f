"""Helix's lock manager: six locks, one holder each, while stores A, B and C come and go."""

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
"""Event -> the stores that live after it, and the five tables of Helix's tutorial."""


def locks() -> Table:
    [table] = load_yaml((EXAMPLES / "lock-manager.yaml").read_text())
    assert isinstance(table, Table)
    return table


def stores(live: str) -> StoresView:
    return StoresView.of(*(StoreView(name=name, live=name in live) for name in "abc"))


def holders(assignment: Assignment) -> str:
    return " ".join(str(assignment.leader_of(lock)) for lock in range(6))


async def tell(**how: Any) -> list[Assignment]:
    """The assignments of the whole story, each computed from the one before."""
    told = [Assignment.empty(6)]
    for live, _ in STORY.values():
        result = await rebalance(locks().view(), previous=told[-1], stores=stores(live), **how)
        told.append(result.assignment)
    return told


def moves(told: list[Assignment]) -> list[int]:
    return [
        sum(before.stores_of(lock) != after.stores_of(lock) for lock in range(6))
        for before, after in pairwise(told[1:])
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
async def test_mod_tells_helix_story(how: dict[str, Any]) -> None:
    """Modulus places every lock exactly as Helix's tutorial prints it, bundled or as a user's class."""
    told = await tell(**how)
    assert [holders(assignment) for assignment in told[1:]] == [expected for _, expected in STORY.values()]
    assert moves(told) == [3, 4, 4, 4]


async def test_the_class_of_the_page(tmp_path: Path) -> None:
    """What docs/rebalancers.md shows does the same."""
    [example] = shown(PAGE, "python")
    (tmp_path / "lock_manager.py").write_text(example)
    limits = Limits(path=(str(tmp_path),), seconds=100)
    told = await tell(mode="UserDefined", class_name="lock_manager:LockManager", limits=limits)
    assert [holders(assignment) for assignment in told[1:]] == [expected for _, expected in STORY.values()]


async def test_balanced_moves_least() -> None:
    """Balanced keeps every step as even as modulus does, and moves only what evenness asks for."""
    told = await tell(class_name="balanced")
    assert moves(told) == [3, 2, 2, 2]
    for assignment, (live, _) in zip(told[1:], STORY.values(), strict=True):
        held = [holders(assignment).split().count(store) for store in live]
        assert max(held) - min(held) == 0


async def test_pinned_moves_only_the_lost() -> None:
    """Pinned leaves every lock where it is until its holder fails."""
    told = await tell(class_name="pinned")
    assert moves(told) == [0, 0, 0, 0]
    spread = Assignment.of([[store] for store in "abcabc"], voters=1)
    result = await rebalance(locks().view(), class_name="pinned", previous=spread, stores=stores("ac"))
    assert holders(result.assignment) == "a a c a c c"


async def test_rendezvous_moves_only_between_the_changed() -> None:
    """Under rendezvous a store that joins only takes, and one that returns takes exactly what was its own."""
    told = await tell(class_name="rendezvous")
    alone, with_b, with_c, without_b, again = (holders(assignment).split() for assignment in told[1:])
    assert set(alone) == {"a"}
    assert all(after in (before, "b") for before, after in zip(alone, with_b, strict=True))
    assert all(after in (before, "c") for before, after in zip(with_b, with_c, strict=True))
    assert all(before == after for before, after in zip(with_c, without_b, strict=True) if before != "b")
    assert again == with_c
