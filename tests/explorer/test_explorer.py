"""The protocol passes the explorer, and the explorer finds all known bugs."""

from __future__ import annotations

import random

import msgspec
import pytest

from evenkeel.protocol.group_configuration import Configuration
from evenkeel.protocol.records import Peer
from tests.explorer import scenarios, search
from tests.explorer.mutations import MUTATIONS, Mutation, by_name
from tests.explorer.raft import Entry, Replica, replicate
from tests.explorer.search import Failure
from tests.explorer.world import Scenario, Target


@pytest.mark.parametrize("schedule", search.SCHEDULES)
@pytest.mark.parametrize("name", scenarios.SMALL)
def test_every_single_deviation(name: str, schedule: str) -> None:
    """With any single deviation from the usual schedule, no invariant breaks and the last target is reached."""
    result = search.exhaust(scenarios.SMALL[name], deviations=1, schedule=schedule)
    assert result.failure is None, str(result.failure)
    assert result.complete
    assert result.states > 100


def test_every_pair_of_deviations() -> None:
    """Moving a one-replica partition tolerates any two deviations from the usual schedule."""
    scenario = msgspec.structs.replace(scenarios.SMALL["hand over"], budget={"desired": 1, "crash": 1, "mute": 1})
    result = search.exhaust(scenario, deviations=2)
    assert result.failure is None, str(result.failure)
    assert result.complete


@pytest.mark.parametrize("block", range(4))
def test_random_walks(block: int) -> None:
    """Long random walks through larger worlds with all faults settle without a violation."""
    for seed in range(block * 120, block * 120 + 120):
        rng = random.Random(seed)
        failure, _ = search.walk(scenarios.draw(rng), rng, steps=rng.randint(20, 200))
        assert failure is None, f"seed {seed}: {failure}"


def test_a_follower_keeps_acknowledged_entries() -> None:
    """A follower keeps its acknowledged entries, no matter where its leader's log starts."""
    genesis = Configuration((Peer("a", "v", 1), Peer("b", "v", 1)))
    leader, follower = Replica(("a", 1), genesis), Replica(("b", 1), genesis)
    leader.log = follower.log = (Entry(1), Entry(1, write=1), Entry(1, write=2))
    leader.term = follower.term = 1
    leader.commit = 2
    leader.compact()
    leader.leading = True
    replicate(leader, follower)
    assert (follower.last, follower.log[-1].write) == (4, 2)
    assert leader.commit == 4


def find(mutation: Mutation, walks: int = 4000) -> tuple[Failure | None, int]:
    """Walk until the bug is found; return the failure and the number of walks."""
    for seed in range(walks):
        rng = random.Random(seed)
        scenario = mutation.scenario or scenarios.draw(rng)
        failure, _ = search.walk(scenario, rng, steps=rng.randint(20, 150), likely=mutation.weights)
        if failure is not None:
            return failure, seed
    return None, walks


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_mutation_is_found(mutation: Mutation) -> None:
    """Each known bug is found when inserted; the same walks without it end without a failure."""
    with mutation.patch():
        failure, seed = find(mutation)
        assert failure is not None, f"nothing noticed that {mutation.says}"
        assert search.replay(failure) == failure.message
    rng = random.Random(seed)
    scenario = mutation.scenario or scenarios.draw(rng)
    healthy, _ = search.walk(scenario, rng, steps=rng.randint(20, 150), likely=mutation.weights)
    assert healthy is None, str(healthy)


def test_failures_replay_from_their_trace() -> None:
    """A saved trace fails again in the same way."""
    mutation = by_name("joint-unlocked")
    with mutation.patch():
        failure, _ = find(mutation)
        assert failure is not None
        stored = msgspec.json.decode(msgspec.json.encode(failure), type=Failure)
        assert search.replay(stored) == failure.message
    assert search.replay(stored) is None


def test_walks_repeat_exactly() -> None:
    """The same seed takes the same steps; another seed takes others."""
    scenario = Scenario(
        stores=("a", "b", "c"), targets=(Target(("a",)), Target(("b", "c"))), budget=scenarios.EVERYTHING
    )
    first, second, other = (search.walk(scenario, random.Random(seed), steps=80)[1] for seed in (7, 7, 8))
    assert first == second
    assert first != other
