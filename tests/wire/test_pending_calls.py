"""`PendingCalls` matches answers with requests; `CreditQueue` respects its credit."""

from __future__ import annotations

import random
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.errors import FrameError
from evenkeel.wire.credit_queue import CreditQueue
from evenkeel.wire.framing import Reason
from evenkeel.wire.pending_calls import PendingCalls


def test_answers_arrive_in_any_order() -> None:
    """Each answer settles the request with its number."""
    calls: PendingCalls[str | int] = PendingCalls()
    got: dict[int, str | int | None] = {}
    numbers = [calls.begin(1, replica, accepts=(str,), settle=partial(got.__setitem__, replica)) for replica in (1, 2)]
    for replica, number in ((2, numbers[1]), (1, numbers[0])):
        calls.answered(number, 1, replica, f"to {number}")
    assert got == {1: "to 1", 2: "to 2"}
    assert len(calls) == 0


@pytest.mark.parametrize(
    ("number", "group", "replica", "body"),
    [(2, 5, 6, "fine"), (1, 4, 6, "fine"), (1, 5, 7, "fine"), (1, 5, 6, 7)],
    ids=["number", "group", "replica", "kind"],
)
def test_answer_to_something_else_is_unexpected(number: int, group: int, replica: int, body: str | int) -> None:
    """An answer that does not match its request is rejected, and the request is settled with None."""
    calls: PendingCalls[str | int] = PendingCalls()
    got: list[str | int | None] = []
    calls.begin(5, 6, accepts=(str,), settle=got.append)
    with pytest.raises(FrameError) as refused:
        calls.answered(number, group, replica, body)
    calls.abandon()
    assert refused.value.reason == Reason.UNEXPECTED
    assert got == [None]


def test_second_answer_is_unexpected() -> None:
    """A request is answered once."""
    calls: PendingCalls[str] = PendingCalls()
    got: list[str | None] = []
    number = calls.begin(1, 1, accepts=(str,), settle=got.append)
    calls.answered(number, 1, 1, "first")
    with pytest.raises(FrameError):
        calls.answered(number, 1, 1, "second")
    assert got == ["first"]


@settings(derandomize=True, deadline=None)
@given(
    st.integers(min_value=0, max_value=100),
    st.lists(st.integers(min_value=1, max_value=60), max_size=40),
    st.randoms(use_true_random=False),
)
def test_credit_is_never_exceeded(credit: int, sizes: list[int], rng: random.Random) -> None:
    """Unanswered bytes stay within the credit, except for a single larger item; the order is kept."""
    queue: CreditQueue[int] = CreditQueue(credit)
    for place, size in enumerate(sizes):
        queue.add(place, size)
    unanswered: list[int] = []
    sent: list[int] = []
    while queue.bytes:
        for place in queue.ready():
            unanswered.append(place)
            sent.append(place)
            assert len(unanswered) == 1 or sum(sizes[item] for item in unanswered) <= credit
        done = unanswered.pop(rng.randrange(len(unanswered)))
        queue.answered(sizes[done])
    assert sent == list(range(len(sizes)))
