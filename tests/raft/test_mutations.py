"""Mutation tests: with any rule of the core broken, the simulation or a scenario fails."""

from __future__ import annotations

import inspect

import pytest
from msgspec import Struct
from msgspec.structs import replace

from evenkeel_raft.core.errors import InvariantError
from tests.raft import mutations
from tests.raft.mutations import Mutation
from tests.raft.scenario import FOLDER, replay
from tests.raft.sim.mix import Mix
from tests.raft.sim.run import run

TRIES = 150


class Case(Struct, frozen=True):
    """A bug, the faults that expose it, and a seed near which it shows."""

    mutation: Mutation
    mix: Mix
    first: int = 1


READS = Mix(clients=16, partition_every=300, skew=1.9, delay=1, election_ticks=5)
UNREST = Mix(stores=5, voters=5, partition_every=200, crash_every=200, loss=0.1)
CHURN = Mix(stores=6, churn_every=200)

ONE_VOTER = Mix(stores=3, voters=1, learners=1, crash_every=300, store_damage=1.0, compact_every=15, checkpoint=1.0)

CAUGHT_BY_SIMULATION = [
    Case(mutations.ack_before_durable, Mix(disk_delay=10)),
    Case(mutations.leader_counts_itself_early, Mix(disk_delay=10)),
    Case(mutations.old_term_committed_by_counting, Mix(partition_every=200, small_messages=True, clients=16), first=3),
    Case(mutations.append_cuts_log, Mix(delay=15, duplication=0.3, tail=0.1)),
    Case(mutations.vote_forgotten, Mix(stores=5, voters=5, crash_every=60, delay=15, partition_every=200), first=2),
    Case(mutations.vote_for_any_log, UNREST, first=2),
    Case(mutations.candidate_asks_early, Mix(disk_delay=40, crash_every=60, delay=15, transfer_every=100), first=14),
    Case(mutations.read_without_quorum, READS, first=5),
    Case(mutations.read_before_first_commit, Mix(transfer_every=100, delay=10), first=12),
    Case(mutations.read_rounds_not_numbered, READS, first=5),
    Case(mutations.outgoing_half_ignored, CHURN),
    Case(mutations.joint_skipped, CHURN),
    Case(mutations.changes_overlap, CHURN),
    Case(
        mutations.unapplied_conf_ignored,
        Mix(churn_every=100, apply_delay=30, apply_sticks=0.1, partition_every=200, transfer_every=100),
    ),
    Case(mutations.snapshot_with_oldest_conf, Mix(stores=6, churn_every=200, compact_every=50)),
    Case(mutations.leader_never_requests_state, ONE_VOTER),
    Case(mutations.repair_without_check, replace(ONE_VOTER, apply_sticks=0.5, clients=16)),
    Case(mutations.repairer_followed, ONE_VOTER),
    Case(
        mutations.snapshot_index_ignored,
        Mix(crash_every=100, store_damage=1.0, compact_every=20, checkpoint=1.0, apply_sticks=0.2, transfer_every=100),
    ),
    Case(mutations.quiesces_without_quorum, Mix(quiesce_every=20, partition_every=200)),
    Case(mutations.learners_counted, Mix(learners=1, churn_every=200, partition_every=200, crash_every=300)),
    Case(mutations.applied_before_durable, Mix(disk_delay=30, crash_every=100, checkpoint=1.0), first=2),
    Case(mutations.minority_decides, Mix(stores=4, voters=4)),
    Case(mutations.commit_beyond_match, UNREST),
    Case(mutations.repair_drops_log, Mix(crash_every=80, store_damage=1.0, compact_every=40, apply_delay=15), first=5),
    Case(
        mutations.hard_state_before_entries, Mix(stores=5, voters=5, crash_every=100, disk_delay=20, loss=0.1), first=17
    ),
    Case(mutations.failed_sync_reported, Mix(disk_fails_every=200)),
    Case(mutations.conf_commit_not_reported, Mix(churn_every=100, delay=15, disk_delay=10)),
    Case(mutations.rejection_below_match, Mix(loss=0.2)),
    Case(mutations.probe_never_repeated, Mix(loss=0.2, crash_every=300), first=2),
    Case(mutations.silent_below_commit, Mix(stores=6, churn_every=200, compact_every=50, loss=0.1), first=3),
    Case(mutations.tick_takes_read_round, Mix(stores=1, voters=1, take_late=0.5, one_read=True)),
    Case(mutations.tick_takes_read_round, Mix(stores=1, voters=1, take_late=0.5, clients=1)),
    Case(mutations.never_wakes, Mix(quiesce_every=40, crash_every=200), first=2),
    Case(mutations.state_report_assumed_delivered, Mix(learners=1, quiesce_every=20, store_gone_every=100, delay=15)),
    Case(mutations.quiesced_leader_not_pinged, Mix(learners=2, quiesce_every=20, store_gone_every=100)),
    Case(
        mutations.learner_refuses_vote,
        Mix(voters=2, churn_every=150, partition_every=200, crash_every=200, apply_delay=20),
        first=7,
    ),
    Case(mutations.attached_where_it_was, Mix(store_gone_every=100, checkpoint=0.05)),
    Case(
        mutations.attached_without_confs,
        Mix(stores=6, churn_every=100, crash_every=100, store_late=1.0, compact_every=30, checkpoint=1.0),
    ),
]
CAUGHT_BY_SCENARIO: dict[Mutation, str] = {
    mutations.completion_covers_replacement: "append_completion_aba",
    mutations.snapshot_with_newest_conf: "snapshot_membership",
    mutations.ack_before_durable: "ack_before_durable",
    mutations.append_cuts_log: "non_conflicting_append",
    mutations.candidate_asks_early: "candidate_durable",
    mutations.any_response_is_stale: "quiesce",
    mutations.stale_response_wakes: "quiesce",
    mutations.leader_never_requests_state: "leader_repair",
    mutations.learner_refuses_vote: "learner_votes",
    mutations.never_wakes: "quiesce",
    mutations.old_term_committed_by_counting: "commit_old_term",
    mutations.probe_never_repeated: "lost_probe",
    mutations.read_before_first_commit: "read_before_first_commit",
    mutations.read_rounds_not_numbered: "read_context",
    mutations.rejection_below_match: "next_above_match",
    mutations.repair_drops_log: "damaged_store",
    mutations.silent_below_commit: "append_below_snapshot",
    mutations.quiesces_without_quorum: "quiesce_waits",
    mutations.snapshot_index_ignored: "snapshot_request_index",
    mutations.tick_takes_read_round: "read_single_voter",
    mutations.unapplied_conf_ignored: "unapplied_conf",
    mutations.votes_carry_no_commit: "removed_voter_blocks",
}


def _fails(seed: int, mix: Mix) -> bool:
    try:
        run(seed, mix=mix)
    except (AssertionError, InvariantError):
        return True
    return False


@pytest.mark.parametrize("case", CAUGHT_BY_SIMULATION, ids=lambda case: case.mutation.__name__)
def test_simulation_turns_red(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the rule broken, some seed fails under the faults that the rule protects against."""
    case.mutation(monkeypatch)
    assert any(_fails(seed, case.mix) for seed in range(case.first, case.first + TRIES))


@pytest.mark.parametrize("mutation", CAUGHT_BY_SCENARIO, ids=lambda mutation: mutation.__name__)
def test_scenario_turns_red(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the rule broken, the rule's scenario leaves another trace."""
    text = (FOLDER / f"{CAUGHT_BY_SCENARIO[mutation]}.txt").read_text()
    mutation(monkeypatch)
    assert replay(text) != text


def test_wiped_replica_under_its_old_id_turns_red() -> None:
    """A wiped store that returns under the same replica id breaks an invariant."""
    assert any(_fails(seed, Mix(wipe_every=400, same_id_after_wipe=True)) for seed in range(1, TRIES))


def test_every_mutation_is_caught_by_something() -> None:
    """Every mutation is used by a test."""
    defined = inspect.getmembers(mutations, lambda item: getattr(item, "__module__", "") == mutations.__name__)
    caught = {case.mutation for case in CAUGHT_BY_SIMULATION} | set(CAUGHT_BY_SCENARIO)
    assert {function for name, function in defined if not name.startswith("_")} == caught
