"""SemiAuto and Customized: the users' word, and what becomes of it when stores fail."""

from __future__ import annotations

import asyncio

import pytest

from evenkeel.errors import RebalancerError
from evenkeel.model.views import Assignment, Choice, Mode, Placement, StoresView, StoreView, TableView
from evenkeel.rebalancers.rebalancer_runner import rebalance

THREE = TableView(name="t", partitions=1, replicas=3, consensus_size=3)


def stores(live: str, *, draining: str = "", known: str = "abcdef") -> StoresView:
    return StoresView.of(*(StoreView(name=name, live=name in live, draining=name in draining) for name in known))


def rows(
    mode: Mode,
    choices: dict[int, Choice],
    where: StoresView,
    *,
    view: TableView = THREE,
    previous: list[str] | None = None,
) -> list[str]:
    before = Assignment.of([list(row) for row in previous], voters=3) if previous else Assignment.empty(view.partitions)
    found = asyncio.run(rebalance(view, mode=mode, choices=choices, previous=before, stores=where)).assignment
    return ["".join(found.stores_of(p)) for p in range(found.partitions)]


def order(stores: str, leader: str | None = None) -> dict[int, Choice]:
    return {0: Choice(stores=tuple(stores), leader=leader)}


@pytest.mark.parametrize(
    ("live", "expected"),
    [
        ("abcde", "abc"),
        ("bcde", "bcd"),
        ("acde", "acd"),
        ("cde", "cde"),
    ],
)
def test_semi_auto_uses_the_first_live_stores(live: str, expected: str) -> None:
    """The first `replicas` stores that live hold the partition, in the order of the list; the first leads."""
    assert rows("SemiAuto", order("abcde"), stores(live), previous=["abc"]) == [expected]


def test_semi_auto_keeps_lost_stores_without_a_spare() -> None:
    """Without a spare the lost store stays a member, last in order, and another leads."""
    assert rows("SemiAuto", order("abc"), stores("bc"), previous=["abc"]) == ["bca"]


def test_semi_auto_roles_by_order() -> None:
    """With learners, the lost voter changes places with the next learner."""
    view = TableView(name="t", partitions=1, replicas=5, consensus_size=3)
    assert rows("SemiAuto", order("abcde"), stores("bcde"), view=view, previous=["abcde"]) == ["bcdea"]


def test_semi_auto_draining() -> None:
    """A draining store gives way to a spare, and stays where there is none."""
    where = stores("abcd", draining="a")
    assert rows("SemiAuto", order("abcd"), where, previous=["abc"]) == ["bcd"]
    assert rows("SemiAuto", order("abc"), where, previous=["abc"]) == ["bca"]


def test_semi_auto_leader() -> None:
    """A named leader comes first while it lives."""
    assert rows("SemiAuto", order("abc", "c"), stores("abc")) == ["cab"]
    assert rows("SemiAuto", order("abcd", "c"), stores("abd"), previous=["cab"]) == ["abd"]


def test_semi_auto_new_table_needs_live_stores() -> None:
    """A lost store cannot be given a partition it never held."""
    with pytest.raises(RebalancerError, match="needs 3 stores, but its list gives 2: a is lost; list more stores"):
        rows("SemiAuto", order("abc"), stores("bc"))


def test_semi_auto_short_list() -> None:
    """A list shorter than `replicas` is refused with the numbers."""
    with pytest.raises(RebalancerError, match="partition 0 of table t needs 3 stores, but its list gives 2; list more"):
        rows("SemiAuto", order("ab"), stores("abc"))


def test_semi_auto_unknown_store() -> None:
    """A store that does not exist is named in the error."""
    with pytest.raises(RebalancerError, match="its list gives 2: z does not exist"):
        rows("SemiAuto", order("abz"), stores("abc"))


def test_customized_is_exact() -> None:
    """The set is taken to the letter, the leader first."""
    assert rows("Customized", order("cab"), stores("abc")) == ["cab"]
    assert rows("Customized", order("cab", "b"), stores("abc")) == ["bca"]


@pytest.mark.parametrize("size", ["ab", "abcd"])
def test_customized_size(size: str) -> None:
    """A set has exactly `replicas` stores, so that the Table never claims what is not so."""
    with pytest.raises(
        RebalancerError, match=rf"partition 0 has {len(size)} stores; allowed: 3, the replicas of table t"
    ):
        rows("Customized", order(size), stores("abcd"))


def test_customized_leader_votes() -> None:
    """A learner cannot lead."""
    view = TableView(name="t", partitions=1, replicas=3, consensus_size=1)
    with pytest.raises(RebalancerError, match="leader c is a learner, because only the first 1 stores vote"):
        rows("Customized", order("abc", "c"), stores("abc"), view=view)


def test_customized_lost_store_may_stay_but_not_be_added() -> None:
    """A lost or draining store keeps what it has, and receives nothing."""
    assert rows("Customized", order("abc"), stores("bc"), previous=["abc"]) == ["abc"]
    with pytest.raises(RebalancerError, match="partition 0 goes to store a, which is lost"):
        rows("Customized", order("abc"), stores("bcd"), previous=["bcd"])
    with pytest.raises(RebalancerError, match="goes to store a, which is draining"):
        rows("Customized", order("abc"), stores("abcd", draining="a"), previous=["bcd"])


def test_customized_unknown_store() -> None:
    """A store that does not exist is refused."""
    with pytest.raises(RebalancerError, match="partition 0 names store z, which does not exist"):
        rows("Customized", order("abz"), stores("abc"))


def test_customized_caps() -> None:
    """Caps hold for users too."""
    view = TableView(name="t", partitions=2, replicas=1, consensus_size=1, placement=Placement(max_per_store=1))
    choices = {0: Choice(stores=("a",)), 1: Choice(stores=("a",))}
    with pytest.raises(RebalancerError, match="store a would hold 2 replicas of table t, but has room for 1"):
        rows("Customized", choices, stores("ab"), view=view)


@pytest.mark.parametrize("mode", ["SemiAuto", "Customized"])
def test_partitions_without_a_choice_stay(mode: Mode) -> None:
    """A partition without a choice stays where it is."""
    view = TableView(name="t", partitions=2, replicas=3, consensus_size=3)
    assert rows(mode, {1: Choice(stores=tuple("fed"))}, stores("abcdef"), view=view, previous=["abc", "def"]) == [
        "abc",
        "fed",
    ]


@pytest.mark.parametrize("mode", ["SemiAuto", "Customized"])
def test_new_tables_need_a_choice_for_every_partition(mode: Mode) -> None:
    """A new table without a choice for some partitions is refused; the error names the object to write."""
    view = TableView(name="t", partitions=130, replicas=1, consensus_size=1)
    choices = {p: Choice(stores=("a",)) for p in range(128)}
    with pytest.raises(
        RebalancerError, match=r"partition 128 of table t has no stores \(2 of 130 .* PartitionAssignment t-2"
    ):
        rows(mode, choices, stores("a"), view=view)


@pytest.mark.parametrize("mode", ["SemiAuto", "Customized"])
def test_partitions_that_do_not_exist(mode: Mode) -> None:
    """A choice for a partition beyond the last is refused."""
    with pytest.raises(RebalancerError, match=r"has the partitions 0 to 0, but .* lists partition 5"):
        rows(mode, {**order("abc"), 5: Choice(stores=("a",))}, stores("abc"))
