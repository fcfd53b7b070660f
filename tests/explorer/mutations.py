"""Known bugs, each put back on its own: what the explorer must find.

A mutation replaces one function of the protocol, or of the sidecar's agent or what drives it where the bug is about
how it reads and what it remembers, for as long as its context lasts. `hints` are budgets and wishes that make the bug
likely to bite, so that a test needs seconds, not hours; they never make a correct protocol fail.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import msgspec

from evenkeel.metastore.metastore_api import Compare, Op, Put, Txn
from evenkeel.protocol import (
    change_steps,
    leader_decision,
    leader_transactions,
    operator_decision,
    replica_decision,
    stored_plan,
)
from evenkeel.protocol.group_configuration import Configuration, is_majority
from evenkeel.protocol.keys import PartitionKeys
from evenkeel.protocol.leader_decision import Action, GroupView, Propose, Write
from evenkeel.protocol.operator_decision import Case, Decision
from evenkeel.protocol.partition_view import PartitionView
from evenkeel.protocol.records import (
    Peer,
    Pending,
    ReplicaId,
    Retarget,
    TargetPeer,
    encode,
    shape,
    voters,
)
from evenkeel_raft.agent.partition_agent import PartitionAgent, SeenTable
from tests.explorer import operators, sidecars
from tests.explorer.metastore_mutations import ADOPTED, creates_anew, opens_at_once, seeds_at_once
from tests.explorer.world import PARTITION, Scenario, Store, Wish, World

Patch = contextlib.AbstractContextManager[object]


class Mutation(msgspec.Struct, frozen=True, kw_only=True):
    """One bug."""

    name: str
    says: str
    """What the bug does."""
    patch: Callable[[], Patch]
    scenario: Scenario | None = None
    """Where the bug is likely to bite; without one, scenarios are drawn at random."""
    weights: dict[str, float] = {}
    """How likely actions are, where that matters."""


def _swap(owner: object, name: str, wrap: Callable[[Any], Any]) -> Callable[[], Patch]:
    """A patch that replaces `owner.name` by `wrap(original)`."""
    return lambda: mock.patch.object(owner, name, wrap(getattr(owner, name)))


# -- the operator's half -----------------------------------------------------------------------------------------------


def _trigger_stays(original: Callable[..., Decision]) -> Callable[..., Decision]:
    def retarget(*args: Any, **kwargs: Any) -> Decision:
        decision = original(*args, **kwargs)
        if decision.case in (Case.REACHED, Case.UNDER_WAY):
            return Decision(decision.case, tuple(op for op in decision.ops if op.key != PARTITION.trigger))
        return decision

    return retarget


def _empty_target(original: Callable[..., Decision]) -> Callable[..., Decision]:
    def retarget(view: PartitionView, target: Sequence[TargetPeer], **kwargs: Any) -> Decision:
        decision = original(view, target, **kwargs)
        if decision.case is not Case.EMPTY_TARGET or view.stable is None or view.trigger >= kwargs["plan"]:
            return decision
        empty = Put(PARTITION.pending, encode(Pending(((),))))
        return Decision(Case.STARTED, (empty, Put(PARTITION.trigger, encode(kwargs["plan"]))))

    return retarget


def _away_and_back(original: Callable[..., Decision]) -> Callable[..., Decision]:
    def retarget(view: PartitionView, target: Sequence[TargetPeer], **kwargs: Any) -> Decision:
        decision = original(view, target, **kwargs)
        if view.stable is not None and decision.ops and shape(target) == shape(view.stable.peers):
            return Decision(Case.REACHED, (Put(PARTITION.trigger, encode(kwargs["plan"])),))
        return decision

    return retarget


def _by_bytes() -> Patch:
    original = change_steps.pending_of

    def pending_of(current: Sequence[Peer], target: Sequence[Peer]) -> Pending | None:
        return original(current, target) or (Pending((tuple(target),)) if encode(target) != encode(current) else None)

    stack = contextlib.ExitStack()
    stack.enter_context(mock.patch.object(operator_decision, "shape", lambda peers: encode(tuple(peers))))
    for module in (operator_decision, leader_transactions):
        stack.enter_context(mock.patch.object(module, "pending_of", pending_of))
    return stack


def _ids_from_plan() -> Patch:
    """Ids as they were when the plan was made, not as they are when the partition is written."""
    ids: dict[int, dict[tuple[str, str], int]] = {}
    make_plan = operators.make_plan

    def remember(world: World, n: int) -> stored_plan.Plan:
        ids[n] = {(peer.store, peer.volume): peer.replica for peer in world.view().peers()}
        return make_plan(world, n)

    def assign_ids(target: Sequence[TargetPeer], *, keep: object, plan: int) -> tuple[Peer, ...]:
        known = ids.get(plan, {})
        return tuple(sorted(Peer(t.store, t.volume, known.get((t.store, t.volume), plan), t.role) for t in target))

    stack = contextlib.ExitStack()
    stack.enter_context(mock.patch.object(operators, "make_plan", remember))
    stack.enter_context(mock.patch.object(operator_decision, "assign_ids", assign_ids))
    return stack


# -- the sidecar's half ------------------------------------------------------------------------------------------------


def _stale_read(world: World, store: Store) -> None:
    """A copy from before the last changes, which the watch has already reported and will not report again."""
    sidecars.see(world, store)
    store.agent.view = world.past[-2].view if len(world.past) > 1 else world.view()


def _one_step(current: Sequence[Peer], target: Sequence[Peer]) -> Pending | None:
    ids = {(peer.store, peer.volume): peer.replica for peer in current}
    kept = tuple(sorted(Peer(p.store, p.volume, ids.get((p.store, p.volume), p.replica), p.role) for p in target))
    return None if shape(current) == shape(target) else Pending((kept,))


def _on_absence() -> Patch:
    excluded, may_delete = replica_decision.excluded, sidecars.may_delete
    stack = contextlib.ExitStack()
    stack.enter_context(
        mock.patch.object(replica_decision, "excluded", lambda view, id_: view.stable is None or excluded(view, id_))
    )
    stack.enter_context(
        mock.patch.object(
            sidecars, "may_delete", lambda world, store: store.agent.view.stable is None or may_delete(world, store)
        )
    )
    return stack


def _old_peers(original: Callable[..., replica_decision.Start | None]) -> Callable[..., replica_decision.Start | None]:
    def start(view: PartitionView, **kwargs: Any) -> replica_decision.Start | None:
        wanted = original(view, **kwargs)
        if wanted is None or wanted.configuration is not None or view.pending is None:
            return wanted
        return replica_decision.Start(wanted.peer, Configuration(view.pending.last))

    return start


def _any_volume(original: Callable[..., replica_decision.Start | None]) -> Callable[..., replica_decision.Start | None]:
    def start(view: PartitionView, *, store: str, volume: str, newest_held: int) -> replica_decision.Start | None:
        for peer in view.stable.peers if view.stable is not None else ():
            if peer.store == store:
                return original(view, store=store, volume=peer.volume, newest_held=newest_held)
        return original(view, store=store, volume=volume, newest_held=newest_held)

    return start


def _switch_by_reread(original: Callable[..., Action | None]) -> Callable[..., Action | None]:
    def next_action(view: PartitionView, group: GroupView, **kwargs: Any) -> Action | None:
        behind = view.stable is not None and shape(view.stable.peers) != shape(group.applied.peers)
        settled = group.newest == group.applied and not group.applied.joint and group.committed_in_term
        if behind and settled and view.pending is not None:
            txn = leader_transactions.switch_txn(
                view, group.applied.peers, keys=PARTITION, token=view.pending_mod, table=kwargs["table"]
            )
            return Write("switch", txn)
        return original(view, group, **kwargs)

    return next_action


def _staging_has_token(original: Callable[..., Action | None]) -> Callable[..., Action | None]:
    def stage(view: PartitionView, applied: Configuration) -> Action | None:
        action = original(view, applied)
        if not isinstance(action, Propose):
            return action
        return Propose(action.what, msgspec.structs.replace(action.configuration, token=view.pending_mod))

    return stage


def _without_lock(*, joint: bool) -> Callable[[Callable[..., Action | None]], Callable[..., Action | None]]:
    def wrap(original: Callable[..., Action | None]) -> Callable[..., Action | None]:
        def change(view: PartitionView, group: GroupView, target: tuple[Peer, ...], **kwargs: Any) -> Action | None:
            action = original(view, group, target, **kwargs)
            if isinstance(action, Write) and action.what == "lock":
                final = leader_decision._final(group.applied, target, token=view.pending_mod)
                return Propose("final", final) if final.joint is joint else action
            return action

        return change

    return wrap


def _only_adds(original: Callable[..., Action | None]) -> Callable[..., Action | None]:
    def stage(view: PartitionView, applied: Configuration) -> Action | None:
        action = original(view, applied)
        kept = isinstance(action, Propose) and set(applied.staged) <= set(action.configuration.staged)
        return action if kept or view.pending is not None else None

    return stage


def _leaves_itself(group: GroupView) -> Action | None:
    return Propose("leave", msgspec.structs.replace(group.applied, outgoing=()))


def _commit_unknown(original: Callable[..., Action | None]) -> Callable[..., Action | None]:
    def next_action(view: PartitionView, group: GroupView, **kwargs: Any) -> Action | None:
        return original(view, msgspec.structs.replace(group, commit_known=True), **kwargs)

    return next_action


def _dead_majority(target: Sequence[Peer], group: GroupView) -> bool:
    target = tuple(target)
    return {peer.id for peer in target} <= group.caught_up or is_majority(group.caught_up, voters(target))


def _planned_waits(original: Callable[..., Action | None]) -> Callable[..., Action | None]:
    def next_action(view: PartitionView, group: GroupView, *, mode: Retarget, **kwargs: Any) -> Action | None:
        return original(view, group, mode=Retarget.QUEUE if mode is Retarget.ADJUST else mode, **kwargs)

    return next_action


def _blind_cancel(original: Callable[..., Txn]) -> Callable[..., Txn]:
    def promote(view: PartitionView, *, keys: PartitionKeys, table: Compare) -> Txn:
        txn = original(view, keys=keys, table=table)
        rests_on = (keys.stable, keys.pending, keys.planned)
        return msgspec.structs.replace(txn, compares=tuple(c for c in txn.compares if c.key not in rests_on))

    return promote


def _stable_at_the_end(original: Callable[..., Txn]) -> Callable[..., Txn]:
    def switch(view: PartitionView, applied: Sequence[Peer], *, keys: PartitionKeys, **kwargs: Any) -> Txn:
        txn = original(view, applied, keys=keys, **kwargs)
        goes_on = any(isinstance(op, Put) and op.key == keys.pending for op in txn.success)
        kept: tuple[Op, ...] = tuple(op for op in txn.success if op.key != keys.stable or not goes_on)
        return msgspec.structs.replace(txn, success=kept)

    return switch


def _destroy_by_parts() -> Patch:
    """The leader is asked first, and stable is what it was then; pending and planned are read later."""

    def ask_first(world: World, store: Store) -> None:
        assert store.replica is not None
        if sidecars.leaders_word(world, store.replica.id):
            store.agent.cleared, store.remembered = store.replica.id, store.agent.view

    def read_later(world: World, store: Store) -> bool:
        assert store.replica is not None
        assert store.remembered is not None
        now = world.view()
        mixed = msgspec.structs.replace(now, stable=store.remembered.stable)
        return replica_decision.excluded(mixed, store.replica.id)

    def suspicion(agent: PartitionAgent, id_: ReplicaId) -> bool:
        stable = None if agent.view is None else agent.view.stable
        return stable is not None and all(peer.id != id_ for peer in stable.peers)

    stack = contextlib.ExitStack()
    stack.enter_context(mock.patch.object(sidecars, "check", ask_first))
    stack.enter_context(mock.patch.object(sidecars, "may_delete", read_later))
    stack.enter_context(mock.patch.object(PartitionAgent, "suspects", suspicion))
    return stack


def _newest_counts(agent: PartitionAgent, view: PartitionView, table: SeenTable | None, *, revision: int) -> None:
    agent.view, agent.table, agent.seen = view, table, revision


def _certain_lock() -> Patch:
    """The lock is taken to be as it was last seen, whatever is on its way or never came back."""
    sent = PartitionAgent.sent

    def keeps_lock(agent: PartitionAgent, write: Write) -> None:
        lock = agent.lock_mod
        sent(agent, write)
        agent.lock_mod = lock

    def goes_on(agent: PartitionAgent) -> None:
        agent.waiting = ""

    stack = contextlib.ExitStack()
    stack.enter_context(mock.patch.object(PartitionAgent, "sent", keeps_lock))
    stack.enter_context(mock.patch.object(PartitionAgent, "gave_up", goes_on))
    return stack


THERE_AND_BACK = Scenario(
    stores=("a", "b", "c"),
    wishes=(Wish(("a", "b")), Wish(("a", "c")), Wish(("a", "b"))),
    mode=Retarget.CANCEL,
    budget={"desired": 2},
)


MUTATIONS = (
    Mutation(
        name="23776",
        says="a plan that changes nothing does not advance the trigger",
        patch=_swap(operator_decision, "retarget", _trigger_stays),
    ),
    Mutation(
        name="25804",
        says="a new leader begins with a stale copy of the keys",
        patch=lambda: mock.patch.object(sidecars, "read_as_leader", _stale_read),
    ),
    Mutation(
        name="25795",
        says="planned becomes pending without going through steps",
        patch=lambda: mock.patch.object(leader_transactions, "pending_of", _one_step),
    ),
    Mutation(
        name="19443", says="an empty target reaches pending", patch=_swap(operator_decision, "retarget", _empty_target)
    ),
    Mutation(
        name="25146",
        says="a target that is stable again is taken for reached, although pending leads away from it",
        patch=_swap(operator_decision, "retarget", _away_and_back),
        scenario=THERE_AND_BACK,
        weights={"elect": 0.02, "timeout": 0.05, "give-up": 0.05, "lead": 0.2},
    ),
    Mutation(
        name="bytes",
        says="configurations are compared by bytes instead of as sets",
        patch=_by_bytes,
        scenario=THERE_AND_BACK,
        weights={"elect": 0.02, "timeout": 0.05, "give-up": 0.05, "lead": 0.2},
    ),
    Mutation(
        name="absence",
        says="a replica is deleted because stable is absent",
        patch=_on_absence,
        scenario=Scenario(
            stores=("a", "b"), wishes=(Wish(("a", "b")), Wish(("a",))), budget={"desired": 1, "blank": 2}
        ),
    ),
    Mutation(
        name="old-peers",
        says="a new replica starts with the peers it is to join",
        patch=_swap(replica_decision, "start", _old_peers),
    ),
    Mutation(
        name="no-volume",
        says="a sidecar starts what names its store, whatever the volume",
        patch=_swap(replica_decision, "start", _any_volume),
    ),
    Mutation(
        name="plan-ids",
        says="replica ids are fixed when the plan is made",
        patch=_ids_from_plan,
        scenario=Scenario(
            stores=("a", "b", "c"), wishes=(Wish(("a", "b")), Wish(("a", "c")), Wish(("a", "b"))), budget={"desired": 4}
        ),
        weights={"operate": 0.3, "elect": 0.02, "timeout": 0.05, "give-up": 0.05, "desired": 0.3},
    ),
    Mutation(
        name="no-token",
        says="the switch compares what was just read instead of its configuration's token",
        patch=_swap(leader_decision, "next_action", _switch_by_reread),
        scenario=Scenario(
            stores=("a", "b", "c"),
            wishes=(Wish(("a", "b", "c")), Wish(("b", "c")), Wish(("a", "b")), Wish(("a", "c"))),
            budget={"desired": 4, "cut": 1},
        ),
        weights={"elect": 0.3, "mend": 0.005, "cut": 1.0, "timeout": 0.05, "give-up": 0.05, "desired": 0.1},
    ),
    Mutation(
        name="staging-token",
        says="entries that stage learners carry the token",
        patch=_swap(leader_decision, "_stage", _staging_has_token),
    ),
    Mutation(
        name="joint-unlocked",
        says="joint is logged without the lock",
        patch=_swap(leader_decision, "_change", _without_lock(joint=True)),
    ),
    Mutation(
        name="learners-unlocked",
        says="a change of learners is logged without the lock",
        patch=_swap(leader_decision, "_change", _without_lock(joint=False)),
        scenario=Scenario(
            stores=("a", "b", "c"),
            wishes=(Wish(("a",)), Wish(("a",), ("b",)), Wish(("a",), ("c",)), Wish(("a",))),
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
            wishes=(Wish(("a", "b", "c")), Wish(("b", "c")), Wish(("a", "b")), Wish(("a", "c"))),
            budget={"desired": 3, "cut": 1},
        ),
        weights={"elect": 0.1, "mend": 0.01, "cut": 0.3, "timeout": 0.05},
    ),
    Mutation(
        name="certain-lock",
        says="a leader goes on under its lock although nobody knows whether its unlocking has landed or will",
        patch=_certain_lock,
        scenario=Scenario(
            stores=("a", "b", "c"), wishes=(Wish(("a", "b")), Wish(("a", "b", "c"))), budget={"desired": 1, "cut": 3}
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
        patch=_swap(leader_decision, "next_action", _commit_unknown),
        scenario=Scenario(
            stores=("a", "b", "c", "d"),
            wishes=(Wish(("a", "b", "c")), Wish(("a", "b", "d"))),
            budget={"desired": 1, "lose": 1},
        ),
        weights={"desired": 4.0, "lose": 0.001, "elect": 0.02, "replicate": 0.2, "timeout": 0.01, "give-up": 0.01},
    ),
    Mutation(
        name="dead-majority",
        says="joint is logged although the target's majority does not answer",
        patch=lambda: mock.patch.object(leader_decision, "ready_to_change", _dead_majority),
    ),
    Mutation(
        name="planned-waits",
        says="in Adjust, planned is not promoted when the lock is released",
        patch=_swap(leader_decision, "next_action", _planned_waits),
        scenario=Scenario(
            stores=("a", "b", "c"),
            wishes=(Wish(("a",)), Wish(("a", "b"))),
            budget={"desired": 1, "lose": 1, "pause": 1},
        ),
        weights={"elect": 0.05, "timeout": 0.05, "give-up": 0.05, "lose": 0.1},
    ),
    Mutation(
        name="blind-cancel",
        says="a cancelled change is replaced without comparing stable and what goes with it",
        patch=_swap(leader_decision, "promote_txn", _blind_cancel),
        scenario=Scenario(
            stores=("a", "b", "c"),
            wishes=(Wish(("a",)), Wish(("a",), ("b",)), Wish(("a",), ("c",)), Wish(("a",))),
            mode=Retarget.CANCEL,
            budget={"desired": 5},
        ),
        weights={"elect": 0.01, "timeout": 2.0, "land": 1.0, "desired": 0.3, "give-up": 0.02},
    ),
    Mutation(
        name="stable-last",
        says="stable is written only when the whole queue is done",
        patch=_swap(leader_decision, "switch_txn", _stable_at_the_end),
    ),
    Mutation(
        name="stale-drop",
        says="a sidecar that has confirmed a drop still starts what an older view asks for",
        patch=lambda: mock.patch.object(sidecars, "forswear", return_value=None),
        scenario=Scenario(
            stores=("a", "b"), wishes=(Wish(("a",)), Wish(("a",), ("b",)), Wish(None)), budget={"desired": 2}
        ),
        weights={"elect": 0.02, "start": 0.01, "deliver": 0.2, "confirm": 4.0, "operate": 4.0, "land": 4.0},
    ),
    Mutation(
        name="stale-watch",
        says="a watch that is behind brings back what a newer read has shown to be over",
        patch=lambda: mock.patch.object(PartitionAgent, "see", _newest_counts),
        scenario=Scenario(
            stores=("a", "b"), wishes=(Wish(("a",)), Wish(("a",), ("b",)), Wish(None)), budget={"desired": 2, "lag": 2}
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
            stores=("a", "b"), wishes=(Wish(("a", "b")), Wish(None)), budget={"desired": 1, "crash": 1, "declare": 1}
        ),
        weights={"elect": 0.02, "restart": 0.02, "declare": 4.0, "timeout": 0.05, "give-up": 0.05},
    ),
    Mutation(
        name="stranded-queue",
        says="in Queue, planned waits for ever behind a change that a lost replica blocks",
        patch=lambda: mock.patch.object(operator_decision, "_stranded", return_value=False),
        scenario=Scenario(
            stores=("a", "b", "c"),
            wishes=(Wish(("a",)), Wish(("a",), ("b",)), Wish(("a",), ("c",))),
            mode=Retarget.QUEUE,
            budget={"desired": 2, "lose": 1},
        ),
        weights={"elect": 0.02, "timeout": 0.05, "give-up": 0.05, "lead": 0.2, "replicate": 0.2, "operate": 4.0},
    ),
    Mutation(
        name="lost-blocks",
        says="a change that names a lost replica is left in place by the operator",
        patch=lambda: mock.patch.object(
            operator_decision, "_may_replace", lambda view, *, mode, gone: mode is Retarget.ADJUST and view.lock is None
        ),
        scenario=Scenario(
            stores=("a", "b", "c"),
            wishes=(Wish(("a",)), Wish(("a",), ("b",))),
            mode=Retarget.QUEUE,
            budget={"desired": 1, "lose": 1},
        ),
        weights={"elect": 0.02, "timeout": 0.05, "give-up": 0.05, "lead": 0.2, "replicate": 0.2, "operate": 4.0},
    ),
    Mutation(
        name="orphan-learner",
        says="learners are not unstaged when their change is called off",
        patch=_swap(leader_decision, "_stage", _only_adds),
        scenario=Scenario(
            stores=("a", "b"), wishes=(Wish(("a",)), Wish(("a",), ("b",)), Wish(("a",))), budget={"desired": 2}
        ),
        weights={"elect": 0.02, "timeout": 0.05, "give-up": 0.05},
    ),
    Mutation(
        name="outgoing-leaves",
        says="a leader that is on its way out ends joint itself",
        patch=lambda: mock.patch.object(leader_decision, "_in_joint", _leaves_itself),
        scenario=Scenario(stores=("a", "b"), wishes=(Wish(("a",)), Wish(("b",))), budget={"desired": 1, "lose": 1}),
        weights={"elect": 0.01, "timeout": 0.01, "give-up": 0.01, "lose": 0.02, "desired": 4.0},
    ),
    Mutation(
        name="read-by-parts",
        says="a replica is deleted by keys read at different revisions, after the leader was asked",
        patch=_destroy_by_parts,
    ),
    Mutation(
        name="seed-unproven",
        says="a leader records its configuration as stable without proving that it still leads",
        patch=_swap(leader_decision, "_seed", seeds_at_once),
        scenario=ADOPTED,
    ),
    Mutation(
        name="floor",
        says="plans of an adopted metastore begin with number one again",
        patch=lambda: mock.patch.object(operators, "plan_floor", return_value=0),
        scenario=ADOPTED,
    ),
    Mutation(
        name="genesis-again",
        says="a table whose metastore is empty is created anew, although stores have its data",
        patch=lambda: mock.patch.object(operators, "_adopt", creates_anew),
        scenario=ADOPTED,
    ),
    Mutation(
        name="older-keys",
        says="stores are let into a metastore from a backup as it is",
        patch=lambda: mock.patch.object(operators, "_adopt", opens_at_once),
        scenario=ADOPTED,
    ),
)


def by_name(name: str) -> Mutation:
    """The mutation called so."""
    return next(mutation for mutation in MUTATIONS if mutation.name == name)
