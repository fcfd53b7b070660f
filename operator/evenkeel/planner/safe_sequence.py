"""Find an order in which changes can be made one after the other without a store ever running out of room.

A change needs room for what it gains before it gives back what it leaves, so replicas that swap places between full
stores can block each other for good, and taking a free place for the wrong replica can block what would have gone well.
Two facts keep the search small. Only stores that could run out at all matter. And a change is safe to make at once if
every store it gains on has room for all that anyone still wants there: nobody is worse off, some may be better. Only
where no safe change is left does the search try one change after the other, those first that leave a store others
wait for, and comes back to try the next where that ends in a block.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Change", "Room", "safe_sequence"]

_TRIES = 2000
_REMEMBERED = 256


@dataclass(frozen=True, kw_only=True)
class Change:
    """One partition's change: the stores it gains and leaves."""

    partition: int
    gains: tuple[int, ...]
    leaves: tuple[int, ...]


@dataclass(frozen=True)
class Room:
    """How many replicas each store has room for; below zero where it holds more than it may."""

    replicas: NDArray[np.int64]

    def copy(self) -> Room:
        """An independent copy."""
        return Room(self.replicas.copy())

    def fits(self, change: Change, reserved: Room) -> bool:
        """Whether all its gains fit at once, beside what is reserved."""
        return all(self.replicas[store] - reserved.replicas[store] >= 1 for store in change.gains)

    def covers(self, stores: Iterable[int], reserved: Room) -> bool:
        """Whether there is room for all that is reserved on these stores."""
        return all(
            reserved.replicas[store] == 0 or self.replicas[store] >= reserved.replicas[store] for store in stores
        )

    def add(self, stores: Sequence[int], *, sign: int = 1) -> None:
        """Give back (or, with sign -1, take) one replica's room on each of the stores."""
        for store in stores:
            self.replicas[store] += sign


def safe_sequence(changes: Sequence[Change], room: Room) -> tuple[list[int], list[int]]:
    """Positions of `changes` in an order that never lacks room, and those for which none was found."""
    table = _Table(changes, len(room.replicas))
    best = state = _State(np.ones(len(changes), dtype=bool), room.copy(), [])
    choices: deque[tuple[_State, list[int]]] = deque(maxlen=_REMEMBERED)
    seen: set[bytes] = set()
    for _ in range(_TRIES + len(changes)):
        table.take_safe(state)
        if len(state.order) > len(best.order):
            best = state
        if not state.waiting.any():
            break
        fresh = state.waiting.tobytes() not in seen
        seen.add(state.waiting.tobytes())
        choices.append((state, table.candidates(state) if fresh else []))
        while choices and not choices[-1][1]:
            choices.pop()
        if not choices:
            break
        state = choices[-1][0].copy()
        table.take(state, choices[-1][1].pop(0))
    return best.order, np.flatnonzero(best.waiting).tolist()


@dataclass
class _State:
    waiting: NDArray[np.bool_]
    room: Room
    order: list[int]

    def copy(self) -> _State:
        return _State(self.waiting.copy(), self.room.copy(), list(self.order))


class _Table:
    """The changes' gains and leaves as flat arrays of (change, store)."""

    def __init__(self, changes: Sequence[Change], stores: int) -> None:
        self._changes = changes
        self._stores = stores
        self._gainer, self._gained = _flat([change.gains for change in changes])
        self._leaver, self._left = _flat([change.leaves for change in changes])

    def take(self, state: _State, position: int) -> None:
        """Make one change from beginning to end."""
        change = self._changes[position]
        state.room.add(change.gains, sign=-1)
        state.room.add(change.leaves)
        state.waiting[position] = False
        state.order.append(position)

    def take_safe(self, state: _State) -> None:
        """Make every change that nobody can be worse off by, until there is none."""
        while (safe := self._without(state, self._contested(state)[self._gained])).size:
            for position in safe.tolist():
                self.take(state, position)

    def _contested(self, state: _State) -> NDArray[np.bool_]:
        """Stores without room for all that is still to come."""
        wanted = self._gained[state.waiting[self._gainer]]
        contested: NDArray[np.bool_] = state.room.replicas < np.bincount(wanted, minlength=self._stores)
        return contested

    def _without(self, state: _State, hindrance: NDArray[np.bool_]) -> NDArray[np.intp]:
        """Waiting changes none of whose gains is hindered."""
        hindered = np.bincount(self._gainer[hindrance], minlength=len(self._changes))
        return np.flatnonzero(state.waiting & (hindered == 0))

    def candidates(self, state: _State) -> list[int]:
        """What could be made next, whoever leaves the most contested stores first."""
        possible = self._without(state, state.room.replicas[self._gained] < 1)
        relief = np.bincount(self._leaver[self._contested(state)[self._left]], minlength=len(self._changes))
        ordered: list[int] = possible[np.argsort(-relief[possible], kind="stable")].tolist()
        return ordered


def _flat(groups: Sequence[tuple[int, ...]]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    owner = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    stores = np.array([store for group in groups for store in group], dtype=np.intp)
    return owner, stores
