"""Changes are ordered so that no store exceeds its cap."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable

import pytest

from evenkeel.errors import PlanningError
from evenkeel.model.views import Assignment, StoresView, StoreView, TableView
from evenkeel.planner import Order, Underway, order

Rows = list[list[str]]


def table(partitions: int, replicas: int = 1) -> TableView:
    return TableView(name="t", partitions=partitions, replicas=replicas, consensus_size=1)


def assignment(rows: Rows) -> Assignment:
    return Assignment.of(rows, voters=1)


def capped(**caps: int | None) -> StoresView:
    return StoresView.of(*(StoreView(name=name, capacity=cap) for name, cap in caps.items()))


def ordered(before: Rows, after: Rows, stores: StoresView, **options: object) -> Order:
    return order(
        assignment(after),
        stable=assignment(before),
        table=table(len(before)),
        stores=stores,
        **options,  # type: ignore[arg-type]
    )


def test_without_limits_all_changes_start_at_once() -> None:
    """One wave holds all changed partitions, and no others."""
    answer = ordered([["a"], ["a"], ["b"]], [["b"], ["c"], ["b"]], capped(a=None, b=None, c=None))
    assert answer == Order(waves=((0, 1),), blocked=())


def test_at_most_max_concurrent_begin_together() -> None:
    """Waves are within the limit, which includes changes in progress."""
    before, after = [["a"]] * 5, [["b"]] * 5
    begun = {4: Underway(occupied=frozenset("ab"), final=("b",))}
    answer = ordered(before, after, capped(a=None, b=None), max_concurrent=2, underway=begun)
    assert answer.waves == ((0,), (1, 2), (3,))


def test_a_change_waits_until_another_has_made_room() -> None:
    """A full store gains a replica only after it has lost one."""
    answer = ordered([["a"], ["b"]], [["b"], ["c"]], capped(a=1, b=1, c=1))
    assert answer.waves == ((1,), (0,))


def test_a_free_place_goes_to_the_change_that_lets_all_others_through() -> None:
    """The free place is not given to partition 0, which would deadlock partitions 1 and 2."""
    before: Rows = [["s1"], ["s2"], ["t"]]
    after: Rows = [["t"], ["t"], ["s2"]]
    answer = ordered(before, after, capped(s1=1, s2=1, t=2))
    assert answer.blocked == ()
    assert answer.waves == ((1,), (2,), (0,))


def test_waiting_changes_keep_their_reservation() -> None:
    """Partition 3 waits although it could start at once: otherwise partitions 0 and 2 would deadlock."""
    before: Rows = [["s", "y"], ["u"], ["t"], ["w"]]
    after: Rows = [["t", "u"], ["z"], ["s"], ["t"]]
    answer = ordered(before, after, capped(s=1, t=2, u=1, w=None, y=None, z=None))
    assert answer == Order(waves=((1,), (0,), (2,), (3,)), blocked=())


def test_full_stores_that_swap_are_reported_with_the_remedy() -> None:
    """A cycle without a free place is blocked, and the message names stores, numbers and the remedy."""
    answer = ordered([["a"], ["b"], ["c"]], [["b"], ["a"], ["d"]], capped(a=1, b=1, c=1, d=1))
    assert answer.waves == ((2,),)
    assert [blocked.partition for blocked in answer.blocked] == [0, 1]
    assert answer.blocked[0].reason == (
        "partition 0 waits for room on b: it holds 1 of at most 1 replicas, and partition 1 cannot leave it either;"
        " raise the cap of b by 1 or add a store"
    )


def test_a_target_above_a_cap_is_reported() -> None:
    """A change that can never fit is blocked."""
    answer = ordered([["a"], ["a"]], [["b"], ["b"]], capped(a=2, b=1))
    assert answer.waves == ((0,),)
    assert "no replica is leaving it; raise the cap of b by 1" in answer.blocked[0].reason


def test_a_store_above_its_cap_gains_nothing_but_may_lose() -> None:
    """After a cap was lowered, the store gains nothing until it is below the cap."""
    answer = ordered([["a"], ["a"], ["b"]], [["c"], ["c"], ["a"]], capped(a=1, b=None, c=None))
    assert answer.waves == ((0, 1), (2,))


def test_changes_in_progress_occupy_room_until_they_end() -> None:
    """Pending and planned stores occupy room, like stable ones."""
    begun = {0: Underway(occupied=frozenset("ab"), final=("b",))}
    answer = ordered([["a"], ["c"]], [["b"], ["a"]], capped(a=1, b=1, c=1), underway=begun)
    assert answer.waves == ((), (1,))


def test_a_retargeted_partition_needs_no_further_slot() -> None:
    """A partition in progress can be retargeted although all slots are taken."""
    begun = {0: Underway(occupied=frozenset("ab"), final=("b",))}
    answer = ordered([["a"], ["a"]], [["c"], ["c"]], capped(a=9, b=9, c=9), underway=begun, max_concurrent=1)
    assert answer.waves == ((0,), (1,))


def test_a_change_of_roles_needs_no_room() -> None:
    """Partitions that only change roles are in the first wave, no matter how full the stores are."""
    before = Assignment.of([["a", "b"]], voters=1)
    after = Assignment.of([["b", "a"]], voters=1)
    answer = order(after, stable=before, table=table(1, 2), stores=capped(a=1, b=1))
    assert answer.waves == ((0,),)


def test_invalid_arguments_are_refused() -> None:
    """Partition counts must agree and maxConcurrent must be positive."""
    with pytest.raises(PlanningError, match="the target has 1 partitions and stable 2"):
        ordered([["a"], ["a"]], [["a"]], capped(a=1))
    with pytest.raises(PlanningError, match="maxConcurrent: got 0; allowed: at least 1"):
        ordered([["a"]], [["b"]], capped(a=1, b=1), max_concurrent=0)


@pytest.mark.parametrize("seed", range(600))
def test_no_step_of_a_random_order_exceeds_a_limit_and_all_that_can_finish_does(seed: int) -> None:
    """Replaying the waves, every store stays within its cap, and no other order completes more changes."""
    scene = Scene(random.Random(seed))
    answer = scene.order()
    scene.replay(answer)
    finished = {p for wave in answer.waves for p in wave}
    changing = {p for p, (old, new) in enumerate(zip(scene.before, scene.after, strict=True)) if set(old) != set(new)}
    blocked = {blocked.partition for blocked in answer.blocked}
    assert finished.isdisjoint(blocked)
    assert finished | blocked >= changing - set(scene.underway)
    assert len(blocked) == scene.fewest_blocked()


class Scene:
    """Return a small random change of many partitions between nearly full stores."""

    def __init__(self, rng: random.Random) -> None:
        self.names = "abcde"[: rng.randint(3, 5)]
        self.before: Rows = []
        self.after: Rows = []
        for _ in range(rng.randint(2, 7)):
            self.before.append(rng.sample(self.names, rng.randint(1, 2)))
            self.after.append(rng.sample(self.names, rng.randint(1, 2)))
        self.underway = {p: self._begun(rng, p) for p in range(len(self.before)) if rng.random() < 0.15}
        self.max_concurrent = rng.choice([None, 1, 2])
        self.caps = {name: self._limit(rng, name) for name in self.names}

    def _begun(self, rng: random.Random, p: int) -> Underway:
        final = self.after[p] if rng.random() < 0.5 else rng.sample(self.names, rng.randint(1, 2))
        return Underway(occupied=frozenset({*self.before[p], *final}), final=tuple(final))

    def _limit(self, rng: random.Random, name: str) -> int:
        old = sum(name in self.occupied(p) for p in range(len(self.before)))
        new = sum(name in row for row in self.after)
        return max(old, new) - rng.choice([0, 0, 0, 0, 0, 1]) + rng.choice([0, 0, 0, 1, 5])

    def occupied(self, p: int) -> Iterable[str]:
        return self.underway[p].occupied if p in self.underway else self.before[p]

    def order(self) -> Order:
        stores = StoresView.of(*(StoreView(name=n, capacity=max(0, self.caps[n])) for n in self.names))
        options = {"underway": self.underway, "max_concurrent": self.max_concurrent}
        return ordered(self.before, self.after, stores, **options)

    def used(self, sets: list[Iterable[str]]) -> Counter[str]:
        return Counter(name for names in sets for name in names)

    def replay(self, answer: Order) -> None:
        """Start wave after wave; most room is taken when a wave has started and none of its changes has ended."""
        now: list[Iterable[str]] = [set(self.occupied(p)) for p in range(len(self.before))]
        running = len(self.underway)
        for wave in answer.waves:
            begun = [{*now[p], *self.after[p]} if p in wave else now[p] for p in range(len(now))]
            self.check_growth(now, begun)
            fresh = [p for p in wave if not (running and p in self.underway)]
            assert self.max_concurrent is None or running + len(fresh) <= max(self.max_concurrent, running)
            for p, begin in self.underway.items() if running else ():
                now[p] = set(begin.final)
            for p in wave:
                now[p] = set(self.after[p])
            running = 0
        blocked = {blocked.partition for blocked in answer.blocked}
        assert all(set(now[p]) == set(self.after[p]) for p in range(len(now)) if p not in blocked)

    def check_growth(self, now: list[Iterable[str]], begun: list[Iterable[str]]) -> None:
        count, held = self.used(begun), self.used(now)
        for name in self.names:
            assert count[name] <= max(self.caps[name], held[name])

    def fewest_blocked(self) -> int:
        """Count by trying every order, one change at a time, after the changes in progress have ended."""
        start: list[Iterable[str]] = [
            set(self.underway[p].final if p in self.underway else self.before[p]) for p in range(len(self.before))
        ]
        goal = [set(row) for row in self.after]
        seen: set[frozenset[int]] = set()

        def most(done: frozenset[int]) -> int:
            seen.add(done)
            now = [goal[p] if p in done else start[p] for p in range(len(goal))]
            best = len(done)
            for p in range(len(goal)):
                if p not in done and done | {p} not in seen and self.fits(now, p):
                    best = max(best, most(done | {p}))
            return best

        same = frozenset(p for p in range(len(goal)) if start[p] == goal[p])
        return len(goal) - most(same)

    def fits(self, now: list[Iterable[str]], p: int) -> bool:
        count = self.used(now)
        return all(count[n] < self.caps[n] for n in set(self.after[p]) - set(now[p]))
