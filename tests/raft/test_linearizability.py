"""The linearizability checker, on histories known to be valid or invalid."""

from __future__ import annotations

import random

import pytest

from tests.raft.check.linearizability import OPEN, Operation, linearizable
from tests.raft.sim.clients import observed


def write(called: int, returned: int, value: int) -> Operation:
    return Operation("write", "k", called, returned, value)


def read(called: int, returned: int, value: int) -> Operation:
    return Operation("read", "k", called, returned, value)


def cas(called: int, returned: int, old: int, new: int, *, ok: bool = True) -> Operation:
    return Operation("cas", "k", called, returned, new, old, ok)


GOOD = {
    "nothing": [],
    "one after the other": [write(1, 2, 7), read(3, 4, 7)],
    "concurrent read sees the old": [write(1, 5, 7), read(2, 3, 0)],
    "concurrent read sees the new": [write(1, 5, 7), read(2, 3, 7)],
    "two writes, either order": [write(1, 5, 7), write(2, 4, 8), read(6, 7, 7), read(8, 9, 7)],
    "an unknown write takes effect late": [write(1, OPEN, 7), read(2, 3, 0), read(4, 5, 7)],
    "an unknown write never takes effect": [write(1, OPEN, 7), read(2, 3, 0), read(4, 5, 0)],
    "compare and set": [write(1, 2, 7), cas(3, 4, 7, 8), read(5, 6, 8)],
    "a failed compare and set": [write(1, 2, 7), cas(3, 4, 9, 8, ok=False), read(5, 6, 7)],
    "an unknown compare and set explains a read": [cas(1, OPEN, 0, 5), read(3, 4, 5)],
    "an unanswered read says nothing": [write(1, 2, 7), read(3, OPEN, 99), read(4, 5, 7)],
}
BAD = {
    "a stale read": [write(1, 2, 7), read(3, 4, 0)],
    "a lost write": [write(1, 2, 7), write(3, 4, 8), read(5, 6, 7)],
    "a value from nowhere": [read(1, 2, 5)],
    "new, then old": [write(1, 9, 7), read(2, 3, 7), read(4, 5, 0)],
    "two readers disagree on the order": [
        write(1, 9, 7),
        write(1, 9, 8),
        read(2, 3, 7),
        read(4, 5, 8),
        read(6, 7, 7),
    ],
    "an unknown write before it was called": [read(1, 2, 7), write(3, OPEN, 7)],
    "an unknown write that is undone": [write(1, OPEN, 7), read(2, 3, 7), read(4, 5, 0)],
    "two compare and sets from one value": [cas(1, 2, 0, 5), cas(3, 4, 0, 6)],
    "a compare and set that should have failed": [write(1, 2, 7), cas(3, 4, 9, 8), read(5, 6, 8)],
    "a compare and set that should not have failed": [write(1, 2, 7), cas(3, 4, 7, 8, ok=False)],
}


@pytest.mark.parametrize("history", GOOD.values(), ids=GOOD)
def test_good_histories_pass(history: list[Operation]) -> None:
    """A history is linearizable if some order explains it."""
    assert linearizable(history)


@pytest.mark.parametrize("history", BAD.values(), ids=BAD)
def test_bad_histories_are_found(history: list[Operation]) -> None:
    """A history that no order explains is not linearizable."""
    assert not linearizable(history)


def simulated(seed: int) -> list[Operation]:
    """Return a history of overlapping operations on a correct register; some never return."""
    rng = random.Random(seed)
    history, value = [], 0
    for number in range(1, 60):
        at = number * 10
        called, returned = at - rng.randint(0, 40), at + rng.randint(0, 40)
        kind = rng.choice(("write", "read", "cas"))
        if kind == "read":
            history.append(read(called, returned, value))
            continue
        if kind == "cas":
            history.append(cas(called, returned, value, number))
        else:
            history.append(write(called, returned, number))
        value = number
        if rng.random() < 0.2:
            history[-1].returned = OPEN
    return history


@pytest.mark.parametrize("seed", range(20))
def test_a_true_register_passes_and_a_swapped_answer_is_found(seed: int) -> None:
    """Histories of a correct register pass; with one read of an outdated value they fail."""
    history = simulated(seed)
    assert linearizable(history)
    assert linearizable(observed(history))
    late = [op for op in history if op.kind == "read" and op.called > 300]
    late[-1].value = -1
    assert not linearizable(history)


def test_unseen_unknown_writes_are_left_out() -> None:
    """Open writes that no read observed are dropped; observed ones are kept."""
    seen, unseen = write(1, OPEN, 7), write(1, OPEN, 8)
    assert observed([seen, unseen, read(2, 3, 7)]) == [seen, read(2, 3, 7)]
