"""The choice of records for the next round."""

from __future__ import annotations

from random import Random

import pytest

from evenkeel_raft.core.raft_types import HardState
from evenkeel_raft.log.log_records import Append, Compacted, Created, Destroyed, Metastore, Record
from evenkeel_raft.log.round_queue import Draft, Rounds, Submission
from tests.raft_log.model import Model, Writer
from tests.raft_log.support import append, compacted, installed, state

LIMIT = 8000


@pytest.fixture
def rounds() -> Rounds:
    return Rounds(LIMIT)


def add(rounds: Rounds, *records: Record) -> list[Submission]:
    submissions = [Submission(record) for record in records]
    for submission in submissions:
        rounds.add(submission)
    return submissions


def shown(draft: Draft) -> list[tuple[int, str, list[int]]]:
    return [
        (
            piece.submission.group,
            type(piece.record).__name__,
            [entry.index for entry in piece.record.entries] if isinstance(piece.record, Append) else [],
        )
        for piece in draft
    ]


def test_everything_small_goes_at_once(rounds: Rounds) -> None:
    """Small records form one round in the order of submission."""
    submissions = add(
        rounds, Created(1, 1, 0), append(1, 1, 2), Metastore(1, 1), append(2, 5, 5), state(1, HardState())
    )
    draft = rounds.draft(urgent=False)
    assert [piece.record for piece in draft] == [submission.record for submission in submissions]
    assert rounds.written(draft) == submissions
    assert len(rounds) == 0


def test_a_large_append_does_not_hold_up_the_others(rounds: Rounds) -> None:
    """A large append is written by shares; later records go along with its first piece."""
    large, *small = add(rounds, append(1, 1, 100, size=1000), *[append(group, 1, 1) for group in range(2, 30)])
    draft = rounds.draft(urgent=False)
    assert shown(draft)[0] == (1, "Append", [1])
    done = rounds.written(draft)
    assert done == small
    assert large.written == 1


def test_alone_a_large_append_has_the_whole_round(rounds: Rounds) -> None:
    """Pieces are consecutive; the first has the snapshot and the last the hard state."""
    record = append(1, 1, 40, size=1000)
    (large,) = add(rounds, Append(1, 1, 0, installed(1, 0).snapshot, record.entries, HardState(5, 1, 0)))
    pieces = []
    while len(rounds):
        draft = rounds.draft(urgent=False)
        (piece,) = draft
        assert isinstance(piece.record, Append)
        pieces.append(piece.record)
        done = rounds.written(draft)
    assert [entry for piece in pieces for entry in piece.entries] == record.entries
    assert all(7 <= len(piece.entries) <= 8 for piece in pieces)
    assert [piece.snapshot is not None for piece in pieces] == [True, False, False, False, False]
    assert [piece.hard_state is not None for piece in pieces] == [False, False, False, False, True]
    assert done == [large]


def test_a_group_keeps_its_order(rounds: Rounds) -> None:
    """Records after a large append of the same group wait for its last piece."""
    add(rounds, append(1, 1, 30, size=1000), state(1, HardState(2, 0, 0)), append(2, 1, 1))
    assert [group for group, _, _ in shown(rounds.draft(urgent=False))] == [1, 2]


def test_an_entry_larger_than_a_round_goes_alone(rounds: Rounds) -> None:
    """A single large entry is one piece."""
    add(rounds, append(1, 1, 2, size=3 * LIMIT))
    assert shown(rounds.draft(urgent=False)) == [(1, "Append", [1])]


def test_rounds_are_bounded(rounds: Rounds) -> None:
    """Rounds stay small however many records wait, and all are written eventually."""
    add(rounds, *[append(group, 1, 1, size=900) for group in range(100)])
    seen: list[int] = []
    while len(rounds):
        draft = rounds.draft(urgent=False)
        assert sum(piece.size for piece in draft) <= LIMIT
        seen += [piece.submission.group for piece in draft]
        rounds.written(draft)
    assert seen == list(range(100))


def test_without_room_entries_wait(rounds: Rounds) -> None:
    """On a full disk entries wait, and so do later records of their group except compactions."""
    add(
        rounds,
        append(1, 5, 5),
        state(1, HardState(3, 0, 0)),
        compacted(1, 4),
        state(2, HardState(3, 0, 0)),
        installed(3, 7),
        Metastore(1, 1),
    )
    draft = rounds.draft(urgent=True)
    assert [(group, kind) for group, kind, _ in shown(draft)] == [
        (1, "Compacted"),
        (2, "Append"),
        (3, "Append"),
        (-1, "Metastore"),
    ]
    rounds.written(draft)
    assert shown(rounds.draft(urgent=False)) == [(1, "Append", [5]), (1, "Append", [])]


def test_the_end_of_a_replica_drops_what_waits_for_it(rounds: Rounds) -> None:
    """Destroying a replica drops waiting records of its group only, but no earlier destruction."""
    first, *gone = add(rounds, Destroyed(1, 1), Created(1, 2, 0), append(1, 1, 1, replica=2))
    (other,) = add(rounds, append(2, 1, 1))
    last = Submission(Destroyed(1, 2))
    assert rounds.add(last) == gone
    assert rounds.written(rounds.draft(urgent=True)) == [first, last]
    assert rounds.written(rounds.draft(urgent=False)) == [other]


@pytest.mark.parametrize("seed", range(20))
def test_any_schedule_ends_in_the_same_state(seed: int) -> None:
    """However records are split and delayed, the log's final contents are the same."""
    rng = Random(seed)
    writer, model, rounds = Writer(rng, payload=400), Model(), Rounds(1000)
    for _ in range(300):
        record = writer.draw()
        if isinstance(record, Compacted):
            # It refers to durable entries.
            flush(rounds, model, urgent=False)
        for gone in rounds.add(Submission(record)):
            if isinstance(gone.record, Created):
                model.apply(gone.record)
        if rng.random() < 0.5:
            flush(rounds, model, urgent=rng.random() < 0.7)
    flush(rounds, model, urgent=False)
    assert model == writer.model


def flush(rounds: Rounds, model: Model, *, urgent: bool) -> None:
    while draft := rounds.draft(urgent=urgent):
        for piece in draft:
            model.apply(piece.record)
        rounds.written(draft)
