"""Search for a sequence of changes in which no store ever runs out of room.

A change needs room on the stores it gains before it frees those it leaves. So replicas that swap places between full
stores can deadlock, and giving a free place to the wrong replica can block other changes. Two facts keep the search
small. Only stores that can run out of room matter. And a change is safe if every store it gains has room for all
remaining changes: it cannot block another change. Only if no safe change is left, the search tries changes one by one,
first those that leave contested stores, and backtracks from a deadlock.
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
    """The number of replicas that each store has room for; negative if it is above its cap."""

    replicas: NDArray[np.int64]

    def copy(self) -> Room:
        """Return an independent copy."""
        return Room(self.replicas.copy())

    def fits(self, change: Change, reserved: Room) -> bool:
        """Whether all gains of the change fit, in addition to what is reserved."""
        return all(self.replicas[store] - reserved.replicas[store] >= 1 for store in change.gains)

    def covers(self, stores: Iterable[int], reserved: Room) -> bool:
        """Whether there is room for all that is reserved on these stores."""
        return all(
            reserved.replicas[store] == 0 or self.replicas[store] >= reserved.replicas[store] for store in stores
        )

    def add(self, stores: Sequence[int], *, sign: int = 1) -> None:
        """Free (or, with sign -1, take) room for one replica on each of the stores."""
        for store in stores:
            self.replicas[store] += sign


def safe_sequence(changes: Sequence[Change], room: Room) -> tuple[list[int], list[int]]:
    """Return positions of `changes` in an order that never lacks room, and positions for which none was found."""
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
        """Apply one change completely."""
        change = self._changes[position]
        state.room.add(change.gains, sign=-1)
        state.room.add(change.leaves)
        state.waiting[position] = False
        state.order.append(position)

    def take_safe(self, state: _State) -> None:
        """Apply all changes that cannot block others, until there is none."""
        while (safe := self._without(state, self._contested(state)[self._gained])).size:
            for position in safe.tolist():
                self.take(state, position)

    def _contested(self, state: _State) -> NDArray[np.bool_]:
        """Mark the stores without room for all remaining changes."""
        wanted = self._gained[state.waiting[self._gainer]]
        contested: NDArray[np.bool_] = state.room.replicas < np.bincount(wanted, minlength=self._stores)
        return contested

    def _without(self, state: _State, hindrance: NDArray[np.bool_]) -> NDArray[np.intp]:
        """Return the remaining changes without a hindered gain."""
        hindered = np.bincount(self._gainer[hindrance], minlength=len(self._changes))
        return np.flatnonzero(state.waiting & (hindered == 0))

    def candidates(self, state: _State) -> list[int]:
        """Return the changes that can be next, first those that leave the most contested stores."""
        possible = self._without(state, state.room.replicas[self._gained] < 1)
        relief = np.bincount(self._leaver[self._contested(state)[self._left]], minlength=len(self._changes))
        ordered: list[int] = possible[np.argsort(-relief[possible], kind="stable")].tolist()
        return ordered


def _flat(groups: Sequence[tuple[int, ...]]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    owner = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    stores = np.array([store for group in groups for store in group], dtype=np.intp)
    return owner, stores
