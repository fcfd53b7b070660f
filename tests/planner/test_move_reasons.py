"""The reasons of moves."""

from __future__ import annotations

from evenkeel.model.views import Assignment, Move, StoresView, TableView
from evenkeel.planner import changed_partitions, changes, moves
from tests.planner.scenes import planned, stores, table


def reasons(of: TableView, on: StoresView, previous: Assignment) -> set[str]:
    found = moves(previous, planned(of, on, previous), table=of, stores=on)
    assert found
    return {move.reason for move in found}


def test_a_store_that_must_be_left_is_named() -> None:
    """Lost, draining, unweighted, unselected, full and removed stores each have a reason."""
    before = planned(table(10), stores(5))
    why: dict[str, dict[str, object]] = {
        "s00 is lost": {"live": False},
        "s00 is draining": {"draining": True},
        "s00 has weight 0": {"weight": 0},
        "s00 has no room under its cap": {"capacity": 1, "used_by_others": 1},
        "s00 is over its cap of 3: it held 6": {"capacity": 3},
    }
    for reason, change in why.items():
        assert reasons(table(10), stores(5, s00=change), before) == {reason}
    labelled = {f"s0{i}": {"labels": {"disk": "ssd"}} for i in range(1, 5)}
    selecting = table(10, store_selector={"disk": "ssd"})
    assert reasons(selecting, stores(5, **labelled), before) == {"s00 lacks the label disk=ssd of the store selector"}
    assert reasons(table(10), StoresView(stores(5).stores[1:]), before) == {"s00 no longer exists"}


def test_a_new_stores_share_is_named() -> None:
    """A store that held nothing is reported as joined."""
    before = planned(table(100), stores(5))
    assert reasons(table(100), stores(6), before) == {"s05 joined: it held 0 and its share is 50"}


def test_unequal_shares_are_named() -> None:
    """Between existing stores the reason is the source's excess over its share."""
    before = planned(table(30, 1), stores(3))
    assert reasons(table(30, 1), stores(3, s02={"weight": 2}), before) == {
        "s00 held 10 and its share is 7.5",
        "s01 held 10 and its share is 7.5",
    }


def test_a_short_stores_share_is_named_where_the_source_had_its_own() -> None:
    """If the source was not above its share, the reason is that the target was below."""
    before = Assignment.of([["s00"], ["s00"], ["s01"]], voters=1)
    target = Assignment.of([["s00"], ["s01"], ["s01"]], voters=1)
    on = stores(2, s00={"weight": 2})
    (move,) = moves(before, target, table=table(3, 1), stores=on)
    assert move.reason == "moved from s00 to s01 so that all stores meet their shares and all zones their limits"
    (back,) = moves(target, before, table=table(3, 1), stores=on)
    assert back.reason == "s01 held 2 and its share is 1"


def test_crowded_zones_are_named() -> None:
    """A partition with two replicas in one zone and none in another has a zone reason."""
    on = stores(6, 3)
    before = Assignment.of([["s00", "s03", "s01"]], voters=3)
    assert reasons(table(1), on, before) == {"zone a had 2 of partition 0's replicas and zone c none"}


def test_changed_replica_counts_are_named() -> None:
    """More and fewer replicas, new partitions and incomplete ones have different reasons."""
    three = planned(table(20), stores(6))
    five = planned(table(20, 5), stores(6), three)
    assert reasons(table(20, 5), stores(6), three) == {"replicas 3 -> 5"}
    assert reasons(table(20), stores(6), five) == {"replicas 5 -> 3"}
    assert reasons(table(1), stores(3), Assignment.empty(1)) == {"partition 0 had no replica"}
    rows = [list(three.stores_of(p)) for p in range(20)]
    rows[7] = rows[7][:2]
    assert "partition 7 had 2 of 3 replicas" in reasons(table(20), stores(6), Assignment.of(rows, voters=3))


def test_moves_stay_within_zones_where_they_can() -> None:
    """Leaving and new replicas of the same zone are paired."""
    before = Assignment.of([["s00", "s01"]], voters=2)
    after = Assignment.of([["s03", "s02"]], voters=2)
    found = moves(before, after, table=table(1, 2), stores=stores(4, 2, s00={"live": False}))
    assert [(move.source, move.target) for move in found] == [("s00", "s02"), ("s01", "s03")]


def test_added_and_removed_replicas_have_one_end() -> None:
    """A source of None is an addition, a target of None a removal."""
    before, after = Assignment.of([["s00"]], voters=1), Assignment.of([["s00", "s01"]], voters=1)
    (added,) = moves(before, after, table=table(1, 2), stores=stores(2))
    (removed,) = moves(after, before, table=table(1, 1), stores=stores(2))
    assert added == Move(partition=0, source=None, target="s01", reason="replicas 1 -> 2")
    assert removed == Move(partition=0, source="s01", target=None, reason="replicas 2 -> 1")


def test_reasons_can_be_limited_to_the_first() -> None:
    """The list of moves can be limited."""
    fresh = planned(table(100), stores(5))
    assert len(moves(Assignment.empty(100), fresh, table=table(100), stores=stores(5), limit=7)) == 7


def test_targets_beyond_the_caps_are_explained_too() -> None:
    """Moves of another rebalancer to full stores still have reasons."""
    on = stores(2, s00={"capacity": 1}, s01={"capacity": 1})
    before, after = Assignment.of([["s00"]] * 3, voters=1), Assignment.of([["s01"]] * 3, voters=1)
    assert {move.reason for move in moves(before, after, table=table(3, 1), stores=on)} == {
        "s00 is over its cap of 1: it held 3"
    }


def test_changes_are_counted_by_kind() -> None:
    """Moves, removals, role changes and transfers are counted separately."""
    before = Assignment.of([["s00", "s01", "s02"], ["s01", "s02", "s00"]], voters=2)
    after = Assignment.of([["s00", "s02", "s03"], ["s02", "s01", "s00"]], voters=2)
    counted = changes(before, after)
    assert (counted.moves, counted.removals, counted.role_changes, counted.transfers) == (1, 1, 1, 1)
    assert changed_partitions(before, after).tolist() == [0]
