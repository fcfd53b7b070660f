"""The walk passes on the log, and detects every known bug that is injected."""

from __future__ import annotations

import inspect

import pytest

from tests.raft_log import mutations, walk
from tests.raft_log.mutations import Mutation
from tests.raft_log.walk import Outcome, run

TRIES = 100
MUTATIONS = [
    mutation
    for name, mutation in inspect.getmembers(mutations, inspect.isfunction)
    if mutation.__module__ == mutations.__name__ and not name.startswith("_")
]


@pytest.mark.parametrize("first", range(1, 101, 10))
def test_seeds(first: int) -> None:
    """Under any faults, exactly the acknowledged records are there."""
    for seed in range(first, first + 10):
        run(seed)


def test_every_kind_of_event_happens() -> None:
    """A handful of seeds writes, collects, fills the disk, crashes and restarts."""
    events = {event for seed in range(1, 11) for event in run(seed).events}
    assert events == {"record", "round", "collection", "recovery", "restart", "crash", "full", "failure"}


def test_same_seed_does_the_same_again() -> None:
    """A failing seed can be replayed: two runs of one seed agree in every number."""
    assert run(10) == run(10)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_walk_finds_known_bugs(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a rule of the log broken, one of the first hundred seeds fails."""
    mutation(monkeypatch)
    assert any(_fails(seed) for seed in range(1, TRIES + 1))


def _fails(seed: int) -> bool:
    try:
        run(seed)
    except Exception:
        return True
    return False


def test_failing_seeds_are_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A failure affects only its seed; its line has the command to repeat it."""
    errors = {5: AssertionError("another state"), 6: KeyError("nobody"), 7: None}

    def fake(seed: int) -> Outcome:
        error = errors.pop(seed)
        if error is not None:
            raise error
        return Outcome(seed, events={"round": 100}, moved_bytes=0)

    monkeypatch.setattr(walk, "run", fake)
    monkeypatch.setattr("tests.raft_log.walk.time.perf_counter", iter((0.0, 1.0, 2.0, 3.0, 10.0)).__next__)
    assert walk.walk(10, 5) == 2
    said = capsys.readouterr().out
    assert "seed 5 FAILED: AssertionError: another state" in said
    assert "python -m tests.raft_log.walk --seed 6" in said
    assert "seeds 5..7: 2 failed; 0.3 seeds/s, 100 events, 10 events/s, 10 s" in said
