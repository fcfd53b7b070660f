"""Order a plan's changes into waves, so that no store exceeds its cap.

While a partition changes, it occupies all stores that its stable, pending and planned name. Only the end of the change
frees the stores it leaves. The first wave of `order` may start now, each further one when all before it have ended.
Within a wave changes may end in any order, since an end only frees room. A change that does not fit into a wave keeps
its reservation: no later change of the sequence takes the room it waits for.

A store that is already above its cap, for example because the cap was lowered, gains no replica until it is below.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from evenkeel.errors import PlanningError
from evenkeel.model.views import Assignment, StoresView, TableView
from evenkeel.planner.counted_changes import changed_partitions
from evenkeel.planner.placement_rules import cap
from evenkeel.planner.safe_sequence import Change, Room, safe_sequence

__all__ = ["Blocked", "Order", "Underway", "order"]

_UNLIMITED = 2**62


@dataclass(frozen=True, kw_only=True)
class Underway:
    """A change in progress."""

    occupied: frozenset[str]
    """All stores that the partition's stable, pending and planned name."""
    final: tuple[str, ...]
    """The partition's stores once pending and planned are applied."""


@dataclass(frozen=True, kw_only=True)
class Blocked:
    """A partition that cannot reach its target in any order, and the reason."""

    partition: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class Order:
    """Partitions to change, in waves; the first wave, possibly empty, may start now."""

    waves: tuple[tuple[int, ...], ...]
    blocked: tuple[Blocked, ...]


def order(
    target: Assignment,
    *,
    stable: Assignment,
    table: TableView,
    stores: StoresView,
    underway: Mapping[int, Underway] | None = None,
    max_concurrent: int | None = None,
) -> Order:
    """Divide the changes from `stable` and from changes in progress to `target` into waves that always fit."""
    _check(target, stable, max_concurrent)
    scene = _Scene(target, stable=stable, table=table, stores=stores, underway=underway or {})
    changes = scene.changes()
    positions, stuck = safe_sequence(changes, scene.room(finished=True))
    sequence = [changes[at] for at in positions]
    return Order(
        waves=_waves(scene, sequence, _UNLIMITED if max_concurrent is None else max_concurrent),
        blocked=scene.explain(sequence, [changes[at] for at in stuck]),
    )


def _check(target: Assignment, stable: Assignment, max_concurrent: int | None) -> None:
    if target.partitions != stable.partitions:
        raise PlanningError(
            f"the target has {target.partitions} partitions and stable {stable.partitions};"
            " use two assignments of the same table"
        )
    if max_concurrent is not None and max_concurrent < 1:
        raise PlanningError(f"maxConcurrent: got {max_concurrent}; allowed: at least 1")


def _waves(scene: _Scene, sequence: list[Change], slots: int) -> tuple[tuple[int, ...], ...]:
    room = scene.room(finished=True)
    now = scene.retargets(sequence)
    wave, rest = _pack(sequence, scene.room(finished=False), slots=slots - len(scene.underway), now=now)
    waves = [wave]
    while True:
        for change in wave:
            room.add(change.gains, sign=-1)
            room.add(change.leaves)
        if not rest:
            return tuple(tuple(change.partition for change in wave) for wave in waves)
        wave, rest = _pack(rest, room.copy(), slots=slots, now={})
        assert wave, "the first change of a safe sequence always fits once all before it have ended"
        waves.append(wave)


def _pack(
    sequence: list[Change], room: Room, *, slots: int, now: Mapping[int, Change]
) -> tuple[list[Change], list[Change]]:
    """Split the sequence into changes that can start together and the rest.

    `now` has the changes of partitions that are already changing. These need no slot, and no room on stores that they
    already occupy. But earlier changes of the sequence may rely on them leaving such a store, so there must be room
    for those as well.
    """
    reserved = Room(np.zeros_like(room.replicas))
    wave: list[Change] = []
    withheld: list[Change] = []
    for at, change in enumerate(sequence):
        if slots <= 0 and not now:
            return wave, withheld + sequence[at:]
        step = now.get(change.partition, change)
        returning = set(change.gains) - set(step.gains)
        if (slots > 0 or step is not change) and room.fits(step, reserved) and room.covers(returning, reserved):
            room.add(step.gains, sign=-1)
            slots -= step is change
            wave.append(change)
        else:
            reserved.add(change.gains)
            withheld.append(change)
    return wave, withheld


class _Scene:
    """The inputs of `order`, with stores as numbers."""

    def __init__(
        self,
        target: Assignment,
        *,
        stable: Assignment,
        table: TableView,
        stores: StoresView,
        underway: Mapping[int, Underway],
    ) -> None:
        self.underway = underway
        self._target = target
        self._stable = stable
        begun = (name for change in underway.values() for name in (*change.occupied, *change.final))
        # A table usually is on few of many stores.
        concerned = {*stable.stores, *target.stores, *begun}
        self._caps = {store.name: cap(store, table) for store in stores.stores if store.name in concerned}
        self._names = sorted(concerned)
        self._number = {name: i for i, name in enumerate(self._names)}

    def _numbers(self, names: Iterable[str]) -> set[int]:
        return {self._number[name] for name in names}

    def changes(self) -> list[Change]:
        """Return the changes that remain once those in progress have ended."""
        fresh = [p for p in changed_partitions(self._stable, self._target).tolist() if p not in self.underway]
        found = [self._change(p, self._stable.stores_of(p)) for p in fresh]
        found += [
            self._change(p, begun.final)
            for p, begun in self.underway.items()
            if set(begun.final) != set(self._target.stores_of(p))
        ]
        return sorted(found, key=lambda change: change.partition)

    def retargets(self, sequence: list[Change]) -> dict[int, Change]:
        """Return, for changing partitions with a new target, the change as it is if it starts before they end."""
        partitions = [change.partition for change in sequence if change.partition in self.underway]
        return {p: self._change(p, self.underway[p].occupied) for p in partitions}

    def _change(self, partition: int, names: Iterable[str]) -> Change:
        base, goal = self._numbers(names), self._numbers(self._target.stores_of(partition))
        return Change(partition=partition, gains=tuple(sorted(goal - base)), leaves=tuple(sorted(base - goal)))

    def room(self, *, finished: bool) -> Room:
        """Return each store's free room, before or after the changes in progress have ended."""
        room = Room(np.array([self._cap(name) for name in self._names], dtype=np.int64))
        held = np.array([*(self._number[name] for name in self._stable.stores), 0])[self._stable.rows]
        present = self._stable.rows >= 0
        np.subtract.at(room.replicas, held[present], 1)
        for p, begun in self.underway.items():
            names = begun.final if finished else begun.occupied
            room.add(sorted(self._numbers(self._stable.stores_of(p))))
            room.add(sorted(self._numbers(names)), sign=-1)
        return room

    def _cap(self, name: str) -> int:
        most = self._caps.get(name)
        return _UNLIMITED if most is None else most

    def explain(self, sequence: list[Change], stuck: list[Change]) -> tuple[Blocked, ...]:
        """Explain for each blocked change which store lacks room and what to do."""
        room = self.room(finished=True)
        for change in sequence:
            room.add(change.gains, sign=-1)
            room.add(change.leaves)
        return tuple(Blocked(partition=change.partition, reason=self._why(change, room, stuck)) for change in stuck)

    def _why(self, change: Change, room: Room, stuck: list[Change]) -> str:
        store = next(store for store in change.gains if room.replicas[store] < 1)
        name = self._names[store]
        most = self._cap(name)
        state = f"it holds {most - room.replicas[store]} of at most {most} replicas"
        remedy = f"raise the cap of {name} by {1 - room.replicas[store]}"
        leaving = next((other.partition for other in stuck if store in other.leaves), None)
        waits = "no replica is leaving it" if leaving is None else f"partition {leaving} cannot leave it either"
        return f"partition {change.partition} waits for room on {name}: {state}, and {waits}; {remedy} or add a store"
