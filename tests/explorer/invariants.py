"""What must hold after every step, and what must hold at the end."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from evenkeel.protocol.group_configuration import is_majority
from evenkeel.protocol.partition_view import PartitionView
from evenkeel.protocol.records import TableState, shape, voters
from tests.explorer import faults, operators
from tests.explorer.raft import Replica
from tests.explorer.world import KEYS, TABLE, World


class Violation(AssertionError):  # noqa: N818 - it is what the protocol is accused of, not an error of ours
    """An invariant does not hold."""


def require(condition: bool, message: Callable[[], str] | str) -> None:
    """Raise a Violation unless the condition holds."""
    if not condition:
        raise Violation(message if isinstance(message, str) else message())


def check(world: World) -> None:
    """Check all invariants of a state; record new commits and leaders."""
    for store in world.stores.values():
        if store.replica is not None:
            _check_replica(world, store.replica)
    _check_data(world)
    _check_keys(world)


def _check_replica(world: World, replica: Replica) -> None:
    for index, entry in enumerate(replica.log[: replica.commit - replica.base], replica.base + 1):
        if world.committed.setdefault(index, entry) != entry:
            raise Violation(
                f"{replica.id} committed {entry} at {index}, where {world.committed[index]} had been committed"
            )
    if replica.leading and world.terms.get(replica.term) != replica.id:
        require(
            replica.term not in world.terms,
            lambda: f"two leaders in term {replica.term}: {replica.id} and {world.terms.get(replica.term)}",
        )
        world.terms[replica.term] = replica.id
        _check_leader_is_complete(world, replica)
    unapplied = sum(entry.configuration is not None for entry in replica.log[replica.commit - replica.base :])
    require(
        not replica.leading or unapplied <= 1, lambda: f"{replica.id} has {unapplied} configuration changes in progress"
    )
    newest = replica.newest()
    require(newest is None or bool(voters(newest.peers)), lambda: f"{replica.id} has a configuration without voters")


def _check_leader_is_complete(world: World, leader: Replica) -> None:
    for index, entry in world.committed.items():
        if index <= leader.base:
            continue
        have = leader.log[index - leader.base - 1] if index <= leader.last else None
        if have != entry:
            raise Violation(f"{leader.id} leads term {leader.term} without committed {index} {entry}: data is lost")


def _check_data(world: World) -> None:
    """Committed entries stay on a majority, of one half while joint; only faults may remove replicas from it."""
    found = faults.committed_configuration(world)
    if found is None or not world.committed or world.record()[0] is None:
        return
    newest = max(world.committed)
    have = world.wiped | {
        store.replica.id
        for store in world.stores.values()
        if store.replica is not None and store.replica.last >= newest
    }
    halves = [half for half in (voters(found[1].peers), found[1].outgoing) if half]
    require(any(is_majority(have, half) for half in halves), lambda: f"entry {newest} is on {have} only: no majority")


def _check_keys(world: World) -> None:
    record, _ = world.record()
    if record is None or record.state is not TableState.READY or not world.asked or not world.adopted():
        return
    view = world.view()
    if record.adopted and view.stable is None:
        world.trigger = 0
        require(view.pending is None and view.lock is None, "a change without stable")
        return
    require(view.trigger >= world.trigger, lambda: f"trigger went back from {world.trigger} to {view.trigger}")
    world.trigger = view.trigger
    world.planned = max(world.planned, view.trigger)
    require(view.stable is not None and bool(view.stable.peers), "a ready table's stable is missing or empty")
    if view.pending is not None:
        _check_pending(view)
    require(view.planned is None or view.pending is not None, "planned without pending is stranded")
    require(
        view.lock is None or (view.pending is not None and view.lock.token == view.pending_mod), "the lock is an orphan"
    )
    _check_against_raft(world, view)


def _check_pending(view: PartitionView) -> None:
    assert view.pending is not None
    assert view.stable is not None
    require(all(step and voters(step) for step in view.pending.queue), "pending holds an empty target")
    chain = (view.stable.peers, *view.pending.queue)
    for before, after in itertools.pairwise(chain):
        require(shape(before) != shape(after), "pending holds a step that changes nothing")


def _check_against_raft(world: World, view: PartitionView) -> None:
    """Stable is what raft runs or one switch behind it, and joint is always under its lock."""
    assert view.stable is not None
    found = faults.committed_configuration(world)
    if found is None:
        return
    _, running = found
    stable = view.stable
    if running.joint:
        locked = view.lock is not None and view.lock.token == running.token == view.pending_mod
        require(locked, "the group is joint, but pending is not locked for it")
    if not running.joint and view.pending_mod != running.token:
        require(
            set(running.peers) == set(stable.peers), lambda: f"raft runs {running.peers}, stable says {stable.peers}"
        )
    known = {peer.id for peer in view.stable.peers}
    deciding = voters(running.peers)
    require(
        2 * sum(peer.id in known for peer in deciding) > len(deciding),
        "most voters of the group are not in stable: nobody could find it",
    )


def check_deletion(world: World, name: str) -> None:
    """A replica is deleted only if its group's configuration excludes it, or with its table."""
    replica = world.stores[name].replica
    found = faults.committed_configuration(world)
    if replica is None or found is None or world.metastore.get(KEYS.tombstone(TABLE)) is not None:
        return
    require(
        replica.id not in found[1].members(), lambda: f"{replica.id} is deleted while its group's configuration has it"
    )


def unfinished(world: World) -> str | None:
    """Return what is left to do once faults have stopped; None if nothing is."""
    if world.desired.voters is None:
        return _undropped(world)
    record, _ = world.record()
    view = world.view()
    newest = operators.newest_plan(world)
    if record is None or record.state is not TableState.READY or newest is None or view.stable is None:
        return "the table is not ready"
    if shape(view.stable.peers) != shape(newest.target(0)):
        return f"stable is {view.stable.peers}, the last target {newest.target(0)}"
    if view.trigger != newest.n:
        return f"plan {newest.n} was never handled: trigger is {view.trigger}"
    for name in ("pending", "planned", "lock"):
        if getattr(view, name) is not None:
            return f"{name} is still there: {getattr(view, name)}"
    if any(operators.next_step(world, operator) for operator in world.operators.values() if operator.epoch_mod):
        return "an operator still has something to write"
    return _unfinished_group(world, view)


def _unfinished_group(world: World, view: PartitionView) -> str | None:
    assert view.stable is not None
    leading = [replica for replica in world.replicas() if replica.leading]
    if len(leading) != 1:
        return f"{len(leading)} leaders"
    applied = leading[0].applied()
    if applied is None or set(applied.peers) != set(view.stable.peers) or applied.staged or applied.joint:
        return f"the group runs {applied}"
    wanted = {peer.id for peer in view.stable.peers}
    running = {store.replica.id for store in world.stores.values() if store.replica is not None and not store.lost}
    if running != wanted:
        return f"replicas {sorted(running)} are there instead of {sorted(wanted)}"
    if any(
        leading[0].known.get(id_, leading[0].commit if id_ == leading[0].id else 0) < leading[0].commit
        for id_ in wanted
    ):
        return "not all replicas have everything"
    return None


def _undropped(world: World) -> str | None:
    left = [kv.key for kv in world.metastore.range(KEYS.root).kvs if f"/{TABLE}" in kv.key]
    if left:
        return f"the dropped table left {left}"
    held = [store.name for store in world.stores.values() if store.replica is not None and not store.lost]
    return f"the dropped table left replicas on {held}" if held else None
