"""Faulty replacements for functions of the protocol, the sidecar's agent and the explorer, for `mutations`."""

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
    table_lifecycle,
)
from evenkeel.protocol.group_configuration import Configuration, is_majority
from evenkeel.protocol.keys import PartitionKeys
from evenkeel.protocol.leader_decision import Action, GroupView, Propose, Write
from evenkeel.protocol.operator_decision import Case, Decision
from evenkeel.protocol.partition_view import PartitionView
from evenkeel.protocol.records import (
    Adoption,
    Peer,
    Pending,
    ReplicaId,
    Retarget,
    TableRecord,
    TableState,
    TargetPeer,
    encode,
    shape,
    voters,
)
from evenkeel_raft.agent.partition_agent import PartitionAgent, SeenTable
from tests.explorer import operators, sidecars
from tests.explorer.world import KEYS, PARTITION, TABLE, Store, World

Patch = contextlib.AbstractContextManager[object]


# -- the operator's half -----------------------------------------------------------------------------------------------


def trigger_stays(original: Callable[..., Decision]) -> Callable[..., Decision]:
    def retarget(*args: Any, **kwargs: Any) -> Decision:
        decision = original(*args, **kwargs)
        if decision.case in (Case.REACHED, Case.UNDER_WAY):
            return Decision(decision.case, tuple(op for op in decision.ops if op.key != PARTITION.trigger))
        return decision

    return retarget


def empty_target(original: Callable[..., Decision]) -> Callable[..., Decision]:
    def retarget(view: PartitionView, target: Sequence[TargetPeer], **kwargs: Any) -> Decision:
        decision = original(view, target, **kwargs)
        if decision.case is not Case.EMPTY_TARGET or view.stable is None or view.trigger >= kwargs["plan"]:
            return decision
        empty = Put(PARTITION.pending, encode(Pending(((),))))
        return Decision(Case.STARTED, (empty, Put(PARTITION.trigger, encode(kwargs["plan"]))))

    return retarget


def away_and_back(original: Callable[..., Decision]) -> Callable[..., Decision]:
    def retarget(view: PartitionView, target: Sequence[TargetPeer], **kwargs: Any) -> Decision:
        decision = original(view, target, **kwargs)
        if view.stable is not None and decision.ops and shape(target) == shape(view.stable.peers):
            return Decision(Case.REACHED, (Put(PARTITION.trigger, encode(kwargs["plan"])),))
        return decision

    return retarget


def by_bytes() -> Patch:
    original = change_steps.pending_of

    def pending_of(current: Sequence[Peer], target: Sequence[Peer]) -> Pending | None:
        return original(current, target) or (Pending((tuple(target),)) if encode(target) != encode(current) else None)

    stack = contextlib.ExitStack()
    stack.enter_context(mock.patch.object(operator_decision, "shape", lambda peers: encode(tuple(peers))))
    for module in (operator_decision, leader_transactions):
        stack.enter_context(mock.patch.object(module, "pending_of", pending_of))
    return stack


def ids_from_plan() -> Patch:
    """Use ids from when the plan was made instead of from when the partition is written."""
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


def stale_read(world: World, store: Store) -> None:
    """Use a copy from before the last changes, which the watch has already delivered."""
    sidecars.see(world, store)
    store.agent.view = world.past[-2].view if len(world.past) > 1 else world.view()


def one_step(current: Sequence[Peer], target: Sequence[Peer]) -> Pending | None:
    ids = {(peer.store, peer.volume): peer.replica for peer in current}
    kept = tuple(sorted(Peer(p.store, p.volume, ids.get((p.store, p.volume), p.replica), p.role) for p in target))
    return None if shape(current) == shape(target) else Pending((kept,))


def on_absence() -> Patch:
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


def old_peers(original: Callable[..., replica_decision.Start | None]) -> Callable[..., replica_decision.Start | None]:
    def start(view: PartitionView, **kwargs: Any) -> replica_decision.Start | None:
        wanted = original(view, **kwargs)
        if wanted is None or wanted.configuration is not None or view.pending is None:
            return wanted
        return replica_decision.Start(wanted.peer, Configuration(view.pending.last))

    return start


def any_volume(original: Callable[..., replica_decision.Start | None]) -> Callable[..., replica_decision.Start | None]:
    def start(view: PartitionView, *, store: str, volume: str, newest_held: int) -> replica_decision.Start | None:
        for peer in view.stable.peers if view.stable is not None else ():
            if peer.store == store:
                return original(view, store=store, volume=peer.volume, newest_held=newest_held)
        return original(view, store=store, volume=volume, newest_held=newest_held)

    return start


def switch_by_reread(original: Callable[..., Action | None]) -> Callable[..., Action | None]:
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


def staging_has_token(original: Callable[..., Action | None]) -> Callable[..., Action | None]:
    def stage(view: PartitionView, applied: Configuration) -> Action | None:
        action = original(view, applied)
        if not isinstance(action, Propose):
            return action
        return Propose(action.what, msgspec.structs.replace(action.configuration, token=view.pending_mod))

    return stage


def without_lock(*, joint: bool) -> Callable[[Callable[..., Action | None]], Callable[..., Action | None]]:
    def wrap(original: Callable[..., Action | None]) -> Callable[..., Action | None]:
        def change(view: PartitionView, group: GroupView, target: tuple[Peer, ...], **kwargs: Any) -> Action | None:
            action = original(view, group, target, **kwargs)
            if isinstance(action, Write) and action.what == "lock":
                final = leader_decision._final(group.applied, target, token=view.pending_mod)
                return Propose("final", final) if final.joint is joint else action
            return action

        return change

    return wrap


def only_adds(original: Callable[..., Action | None]) -> Callable[..., Action | None]:
    def stage(view: PartitionView, applied: Configuration) -> Action | None:
        action = original(view, applied)
        kept = isinstance(action, Propose) and set(applied.staged) <= set(action.configuration.staged)
        return action if kept or view.pending is not None else None

    return stage


def leaves_itself(group: GroupView) -> Action | None:
    return Propose("leave", msgspec.structs.replace(group.applied, outgoing=()))


def commit_unknown(original: Callable[..., Action | None]) -> Callable[..., Action | None]:
    def next_action(view: PartitionView, group: GroupView, **kwargs: Any) -> Action | None:
        return original(view, msgspec.structs.replace(group, commit_known=True), **kwargs)

    return next_action


def dead_majority(target: Sequence[Peer], group: GroupView) -> bool:
    target = tuple(target)
    return {peer.id for peer in target} <= group.caught_up or is_majority(group.caught_up, voters(target))


def planned_waits(original: Callable[..., Action | None]) -> Callable[..., Action | None]:
    def next_action(view: PartitionView, group: GroupView, *, mode: Retarget, **kwargs: Any) -> Action | None:
        return original(view, group, mode=Retarget.QUEUE if mode is Retarget.ADJUST else mode, **kwargs)

    return next_action


def blind_cancel(original: Callable[..., Txn]) -> Callable[..., Txn]:
    def promote(view: PartitionView, *, keys: PartitionKeys, table: Compare) -> Txn:
        txn = original(view, keys=keys, table=table)
        rests_on = (keys.stable, keys.pending, keys.planned)
        return msgspec.structs.replace(txn, compares=tuple(c for c in txn.compares if c.key not in rests_on))

    return promote


def stable_at_the_end(original: Callable[..., Txn]) -> Callable[..., Txn]:
    def switch(view: PartitionView, applied: Sequence[Peer], *, keys: PartitionKeys, **kwargs: Any) -> Txn:
        txn = original(view, applied, keys=keys, **kwargs)
        goes_on = any(isinstance(op, Put) and op.key == keys.pending for op in txn.success)
        kept: tuple[Op, ...] = tuple(op for op in txn.success if op.key != keys.stable or not goes_on)
        return msgspec.structs.replace(txn, success=kept)

    return switch


def destroy_by_parts() -> Patch:
    """Ask the leader first, with stable as of then, and read pending and planned later."""

    def ask_first(world: World, store: Store) -> None:
        assert store.replica is not None
        if sidecars.leaders_word(world, store.replica.id):
            store.agent.confirmed_excluded, store.remembered = store.replica.id, store.agent.view

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
    stack.enter_context(mock.patch.object(PartitionAgent, "seems_excluded", suspicion))
    return stack


def newest_counts(agent: PartitionAgent, view: PartitionView, table: SeenTable | None, *, revision: int) -> None:
    agent.view, agent.table, agent.seen = view, table, revision


def certain_lock() -> Patch:
    """Assume the lock as last seen, even if the outcome of a transaction is unknown."""
    sent = PartitionAgent.sent

    def keeps_lock(agent: PartitionAgent, write: Write) -> None:
        lock = agent.lock_mod
        sent(agent, write)
        agent.lock_mod = lock

    def goes_on(agent: PartitionAgent) -> None:
        agent.waiting = ""

    stack = contextlib.ExitStack()
    stack.enter_context(mock.patch.object(PartitionAgent, "sent", keeps_lock))
    stack.enter_context(mock.patch.object(PartitionAgent, "outcome_unknown", goes_on))
    return stack


# -- another metastore -------------------------------------------------------------------------------------------------


def seeds_at_once(original: Callable[..., Action | None]) -> Callable[..., Action | None]:
    def seed(group: GroupView, *, keys: PartitionKeys, table: Compare) -> Action | None:
        if group.applied.joint:
            return original(group, keys=keys, table=table)
        return Write("seed", leader_transactions.seed_txn(group.applied.peers, keys=keys, table=table))

    return seed


def opens_at_once(world: World, epoch: Compare) -> operators.Step:
    return "open", Txn((epoch,), (Put(KEYS.adoption, encode(Adoption("1", str(world.request)))),))


def creates_again(world: World, epoch: Compare) -> operators.Step | None:
    record, _ = world.record()
    if record is None:
        spec = msgspec.Raw(encode(world.desired))
        made = TableRecord(partitions=1, replicas=1, consensus_size=1, retarget=world.scenario.mode, spec=spec)
        return "announce", table_lifecycle.announce(made, keys=KEYS, table=TABLE, epoch=epoch)
    return operators._create(world, epoch) if record.state is TableState.CREATING else opens_at_once(world, epoch)
