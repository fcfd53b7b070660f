"""Known bugs that the explorer must find, each inserted separately.

A mutation replaces a function of the protocol, of the sidecar's agent or of the explorer while its context lasts.
`scenario` and `weights` make the bug likely to occur, so that a test needs seconds instead of hours; they never make a
correct protocol fail.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any
from unittest import mock

import msgspec

from evenkeel.protocol import (
    leader_decision,
    leader_transactions,
    operator_decision,
    replica_decision,
)
from evenkeel.protocol.records import (
    Retarget,
)
from evenkeel_raft.agent.partition_agent import PartitionAgent
from tests.explorer import faulty_functions as faulty
from tests.explorer import operators, sidecars
from tests.explorer.world import Scenario, Target

Patch = contextlib.AbstractContextManager[object]


class Mutation(msgspec.Struct, frozen=True, kw_only=True):
    """One known bug."""

    name: str
    says: str
    """What the bug does."""
    patch: Callable[[], Patch]
    scenario: Scenario | None = None
    """A scenario in which the bug is likely to occur; without one, scenarios are random."""
    weights: dict[str, float] = {}
    """Weights of actions, if they matter."""


def _swap(owner: object, name: str, wrap: Callable[[Any], Any]) -> Callable[[], Patch]:
    """Return a patch that replaces `owner.name` by `wrap(original)`."""
    return lambda: mock.patch.object(owner, name, wrap(getattr(owner, name)))


ADOPTED = Scenario(
    stores=("a", "b", "c"),
    targets=(Target(("a",)), Target(("b",)), Target(("a", "b", "c")), Target(("c",))),
    budget={"desired": 3, "write": 2, "cut": 1, "pause": 1, "backup": 1, "replace": 2, "readopt": 1, "crash": 1},
)
"""The metastore is lost while replicas move."""


THERE_AND_BACK = Scenario(
    stores=("a", "b", "c"),
    targets=(Target(("a", "b")), Target(("a", "c")), Target(("a", "b"))),
    mode=Retarget.CANCEL,
    budget={"desired": 2},
)


MUTATIONS = (
    Mutation(
        name="23776",
        says="a plan that changes nothing does not advance the trigger",
        patch=_swap(operator_decision, "retarget", faulty.trigger_stays),
    ),
    Mutation(
        name="25804",
        says="a new leader starts with a stale copy of the keys",
        patch=lambda: mock.patch.object(sidecars, "read_as_leader", faulty.stale_read),
    ),
    Mutation(
        name="25795",
        says="planned becomes pending without going through steps",
        patch=lambda: mock.patch.object(leader_transactions, "pending_of", faulty.one_step),
    ),
    Mutation(
        name="19443",
        says="an empty target reaches pending",
        patch=_swap(operator_decision, "retarget", faulty.empty_target),
    ),
    Mutation(
        name="25146",
        says="a target that equals stable is considered reached, although pending leads away from it",
        patch=_swap(operator_decision, "retarget", faulty.away_and_back),
        scenario=THERE_AND_BACK,
        weights={"elect": 0.02, "timeout": 0.05, "give-up": 0.05, "lead": 0.2},
    ),
    Mutation(
        name="bytes",
        says="configurations are compared by bytes instead of as sets",
        patch=faulty.by_bytes,
        scenario=THERE_AND_BACK,
        weights={"elect": 0.02, "timeout": 0.05, "give-up": 0.05, "lead": 0.2},
    ),
    Mutation(
        name="absence",
        says="a replica is deleted because stable is absent",
        patch=faulty.on_absence,
        scenario=Scenario(
            stores=("a", "b"), targets=(Target(("a", "b")), Target(("a",))), budget={"desired": 1, "blank": 2}
        ),
    ),
    Mutation(
        name="old-peers",
        says="a new replica starts with the peers of the group it joins",
        patch=_swap(replica_decision, "start", faulty.old_peers),
    ),
    Mutation(
        name="no-volume",
        says="a sidecar starts replicas that name its store with another volume",
        patch=_swap(replica_decision, "start", faulty.any_volume),
    ),
    Mutation(
        name="plan-ids",
        says="replica ids are fixed when the plan is made",
        patch=faulty.ids_from_plan,
        scenario=Scenario(
            stores=("a", "b", "c"),
            targets=(Target(("a", "b")), Target(("a", "c")), Target(("a", "b"))),
            budget={"desired": 4},
        ),
        weights={"operate": 0.3, "elect": 0.02, "timeout": 0.05, "give-up": 0.05, "desired": 0.3},
    ),
    Mutation(
        name="no-token",
        says="the switch compares the keys just read instead of its configuration's change token",
        patch=_swap(leader_decision, "next_action", faulty.switch_by_reread),
        scenario=Scenario(
            stores=("a", "b", "c"),
            targets=(Target(("a", "b", "c")), Target(("b", "c")), Target(("a", "b")), Target(("a", "c"))),
            budget={"desired": 4, "cut": 1},
        ),
        weights={"elect": 0.3, "mend": 0.005, "cut": 1.0, "timeout": 0.05, "give-up": 0.05, "desired": 0.1},
    ),
    Mutation(
        name="staging-token",
        says="entries that stage learners have the new change token",
        patch=_swap(leader_decision, "_stage", faulty.staging_has_token),
    ),
    Mutation(
        name="joint-unlocked",
        says="joint is logged without the lock",
        patch=_swap(leader_decision, "_change", faulty.without_lock(joint=True)),
    ),
    Mutation(
        name="learners-unlocked",
        says="a change of learners is logged without the lock",
        patch=_swap(leader_decision, "_change", faulty.without_lock(joint=False)),
        scenario=Scenario(
            stores=("a", "b", "c"),
            targets=(Target(("a",)), Target(("a",), ("b",)), Target(("a",), ("c",)), Target(("a",))),
            budget={"desired": 4},
        ),
        weights={"elect": 0.02, "timeout": 0.05, "give-up": 0.05, "desired": 0.5, "operate": 2.0},
    ),
    Mutation(
        name="deposed-unlock",
        says="a deposed leader deletes its successor's lock",
        patch=_swap(leader_decision, "may_unlock", lambda _: lambda *args, **kwargs: True),
        scenario=Scenario(
            stores=("a", "b", "c"),
            targets=(Target(("a", "b", "c")), Target(("b", "c")), Target(("a", "b")), Target(("a", "c"))),
            budget={"desired": 3, "cut": 1},
        ),
        weights={"elect": 0.1, "mend": 0.01, "cut": 0.3, "timeout": 0.05},
    ),
    Mutation(
        name="certain-lock",
        says="a leader continues under its lock although the outcome of its unlock is unknown",
        patch=faulty.certain_lock,
        scenario=Scenario(
            stores=("a", "b", "c"),
            targets=(Target(("a", "b")), Target(("a", "b", "c"))),
            budget={"desired": 1, "cut": 3},
        ),
        weights={
            "elect": 0.01,
            "timeout": 0.3,
            "give-up": 0.01,
            "land": 0.4,
            "cut": 0.2,
            "mend": 1.0,
            "desired": 4.0,
            "lead": 2.0,
            "replicate": 2.0,
            "deliver": 2.0,
        },
    ),
    Mutation(
        name="early-switch",
        says="the switch does not wait until a quorum knows the commit",
        patch=_swap(leader_decision, "next_action", faulty.commit_unknown),
        scenario=Scenario(
            stores=("a", "b", "c", "d"),
            targets=(Target(("a", "b", "c")), Target(("a", "b", "d"))),
            budget={"desired": 1, "lose": 1},
        ),
        weights={"desired": 4.0, "lose": 0.001, "elect": 0.02, "replicate": 0.2, "timeout": 0.01, "give-up": 0.01},
    ),
    Mutation(
        name="dead-majority",
        says="joint is logged although the target's majority does not answer",
        patch=lambda: mock.patch.object(leader_decision, "ready_to_change", faulty.dead_majority),
    ),
    Mutation(
        name="planned-waits",
        says="in Adjust, planned is not promoted when the lock is removed",
        patch=_swap(leader_decision, "next_action", faulty.planned_waits),
        scenario=Scenario(
            stores=("a", "b", "c"),
            targets=(Target(("a",)), Target(("a", "b"))),
            budget={"desired": 1, "lose": 1, "pause": 1},
        ),
        weights={"elect": 0.05, "timeout": 0.05, "give-up": 0.05, "lose": 0.1},
    ),
    Mutation(
        name="blind-cancel",
        says="a cancelled change is replaced without comparing stable, pending and planned",
        patch=_swap(leader_decision, "promote_txn", faulty.blind_cancel),
        scenario=Scenario(
            stores=("a", "b", "c"),
            targets=(Target(("a",)), Target(("a",), ("b",)), Target(("a",), ("c",)), Target(("a",))),
            mode=Retarget.CANCEL,
            budget={"desired": 5},
        ),
        weights={"elect": 0.01, "timeout": 2.0, "land": 1.0, "desired": 0.3, "give-up": 0.02},
    ),
    Mutation(
        name="stable-last",
        says="stable is written only when the whole queue is done",
        patch=_swap(leader_decision, "switch_txn", faulty.stable_at_the_end),
    ),
    Mutation(
        name="stale-drop",
        says="a sidecar that has confirmed a drop still starts replicas of a stale view",
        patch=lambda: mock.patch.object(sidecars, "forswear", return_value=None),
        scenario=Scenario(
            stores=("a", "b"), targets=(Target(("a",)), Target(("a",), ("b",)), Target(None)), budget={"desired": 2}
        ),
        weights={"elect": 0.02, "start": 0.01, "deliver": 0.2, "confirm": 4.0, "operate": 4.0, "land": 4.0},
    ),
    Mutation(
        name="stale-watch",
        says="a watch that is behind undoes what a newer read returned",
        patch=lambda: mock.patch.object(PartitionAgent, "see", faulty.newest_counts),
        scenario=Scenario(
            stores=("a", "b"),
            targets=(Target(("a",)), Target(("a",), ("b",)), Target(None)),
            budget={"desired": 2, "lag": 2},
        ),
        weights={
            "elect": 0.02,
            "start": 0.01,
            "deliver": 0.05,
            "lag": 1.0,
            "confirm": 4.0,
            "operate": 4.0,
            "land": 4.0,
        },
    ),
    Mutation(
        name="early-burial",
        says="a tombstone does not wait for a store that is lost but may return",
        patch=lambda: mock.patch.object(
            operators, "gone_for_good", lambda world, store, volume: world.volumes().get(store) != volume
        ),
        scenario=Scenario(
            stores=("a", "b"),
            targets=(Target(("a", "b")), Target(None)),
            budget={"desired": 1, "crash": 1, "declare": 1},
        ),
        weights={"elect": 0.02, "restart": 0.02, "declare": 4.0, "timeout": 0.05, "give-up": 0.05},
    ),
    Mutation(
        name="stranded-queue",
        says="in Queue, planned waits forever behind a change that a lost replica blocks",
        patch=lambda: mock.patch.object(operator_decision, "_stranded", return_value=False),
        scenario=Scenario(
            stores=("a", "b", "c"),
            targets=(Target(("a",)), Target(("a",), ("b",)), Target(("a",), ("c",))),
            mode=Retarget.QUEUE,
            budget={"desired": 2, "lose": 1},
        ),
        weights={"elect": 0.02, "timeout": 0.05, "give-up": 0.05, "lead": 0.2, "replicate": 0.2, "operate": 4.0},
    ),
    Mutation(
        name="lost-blocks",
        says="the operator does not replace a change that names a lost replica",
        patch=lambda: mock.patch.object(
            operator_decision, "_may_replace", lambda view, *, mode, gone: mode is Retarget.ADJUST and view.lock is None
        ),
        scenario=Scenario(
            stores=("a", "b", "c"),
            targets=(Target(("a",)), Target(("a",), ("b",))),
            mode=Retarget.QUEUE,
            budget={"desired": 1, "lose": 1},
        ),
        weights={"elect": 0.02, "timeout": 0.05, "give-up": 0.05, "lead": 0.2, "replicate": 0.2, "operate": 4.0},
    ),
    Mutation(
        name="orphan-learner",
        says="learners are not unstaged when their change is cancelled",
        patch=_swap(leader_decision, "_stage", faulty.only_adds),
        scenario=Scenario(
            stores=("a", "b"), targets=(Target(("a",)), Target(("a",), ("b",)), Target(("a",))), budget={"desired": 2}
        ),
        weights={"elect": 0.02, "timeout": 0.05, "give-up": 0.05},
    ),
    Mutation(
        name="outgoing-leaves",
        says="an outgoing leader leaves joint itself",
        patch=lambda: mock.patch.object(leader_decision, "_in_joint", faulty.leaves_itself),
        scenario=Scenario(
            stores=("a", "b"), targets=(Target(("a",)), Target(("b",))), budget={"desired": 1, "lose": 1}
        ),
        weights={"elect": 0.01, "timeout": 0.01, "give-up": 0.01, "lose": 0.02, "desired": 4.0},
    ),
    Mutation(
        name="read-by-parts",
        says="a replica is deleted based on keys read at different revisions, after the leader was asked",
        patch=faulty.destroy_by_parts,
    ),
    Mutation(
        name="seed-unproven",
        says="a leader records its configuration as stable without proving that it still leads",
        patch=_swap(leader_decision, "_seed", faulty.seeds_at_once),
        scenario=ADOPTED,
    ),
    Mutation(
        name="floor",
        says="plans of an adopted metastore start with number one again",
        patch=lambda: mock.patch.object(operators, "plan_floor", return_value=0),
        scenario=ADOPTED,
    ),
    Mutation(
        name="genesis-again",
        says="a table is created again in an empty metastore, although stores have its data",
        patch=lambda: mock.patch.object(operators, "_adopt", faulty.creates_again),
        scenario=ADOPTED,
    ),
    Mutation(
        name="older-keys",
        says="stores follow a metastore from a backup without deleting its keys",
        patch=lambda: mock.patch.object(operators, "_adopt", faulty.opens_at_once),
        scenario=ADOPTED,
    ),
)


def by_name(name: str) -> Mutation:
    """Return the mutation of this name."""
    return next(mutation for mutation in MUTATIONS if mutation.name == name)
