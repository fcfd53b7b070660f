"""Actions of a store's sidecar: its real agent, with modelled raft groups, watches and reads."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from evenkeel.metastore.metastore_api import Txn, TxnResult
from evenkeel.protocol import leader_decision, replica_decision, table_lifecycle
from evenkeel.protocol.partition_view import PartitionView
from evenkeel.protocol.records import ReplicaId
from tests.explorer import raft
from tests.explorer.raft import Entry, Replica
from tests.explorer.world import KEYS, TABLE, Action, InFlight, Seen, Store, World


def actions(world: World, store: Store) -> Iterator[Action]:
    """Return all actions of this store that are possible now."""
    name = store.name
    if not store.running:
        return
    if store.refusing:
        if may_adopt(world, store):
            yield ("adopt", name)
        return
    if store.waiting:
        yield ("timeout", name)
    if store.watched < world.watch_revision:
        yield ("deliver", name)
        yield from _glimpses(world, store)
        yield from _lags(world, store)
    if store.replica is None and store.agent.to_start() is not None:
        yield ("start", name)
    if store.leader is not None:
        if store.agent.reads_first(store.leader.term):
            yield ("read", name)
        elif store.agent.may_lead(store.leader.term) and store.agent.lead(group_view(world, store)) is not None:
            yield ("lead", name)
    yield from _deletions(world, store)


def may_adopt(world: World, store: Store) -> bool:
    """Whether the store may follow the present metastore although it followed another one."""
    return world.adoption() != ""


def _glimpses(world: World, store: Store) -> Iterator[Action]:
    """Return deliveries of a watch for one kind of key, which may be ahead of the others."""
    view = store.agent.view
    if view is None or store.blank or not world.spend("glimpse"):
        return
    now = world.view()
    for kind in ("stable", "pending", "planned", "lock"):
        if getattr(now, f"{kind}_mod") != getattr(view, f"{kind}_mod"):
            yield ("glimpse", store.name, kind)


def glimpse(world: World, store: Store, kind: str) -> None:
    """Deliver the present value of one key; the others stay as seen before."""
    agent, now = store.agent, world.view()
    assert agent.view is not None
    news = {name: getattr(now, name) for name in (kind, f"{kind}_mod")}
    agent.see(msgspec.structs.replace(agent.view, **news), agent.table, revision=agent.seen)


def _lags(world: World, store: Store) -> Iterator[Action]:
    """Return the states that the watch delivers on the way to the newest, even if a read has already seen them."""
    for past in to_show(world, store):
        yield ("lag", store.name, str(past.revision))


def to_show(world: World, store: Store) -> Iterator[Seen]:
    """Return the states that the watch may still deliver before the newest."""
    if world.spend("lag") and not store.blank:
        yield from (past for past in world.past if store.watched < past.revision < world.watch_revision)


def lag(world: World, store: Store, revision: int) -> None:
    """Deliver this state by the watch."""
    past = next(past for past in world.past if past.revision == revision)
    _show(store, past)
    store.watched = revision


def _deletions(world: World, store: Store) -> Iterator[Action]:
    if store.replica is not None and store.agent.confirmed_excluded == store.replica.id:
        if may_delete(world, store):
            yield ("delete", store.name)
    elif store.replica is not None and store.agent.seems_excluded(store.replica.id):
        yield ("check", store.name)
    if not store.blank and not store.waiting and world.metastore.get(KEYS.tombstone(TABLE)) is not None:
        if store.replica is not None:
            yield ("wreck", store.name)
        elif _confirmation(world, store) is not None:
            yield ("confirm", store.name)


def act(world: World, kind: str, store: Store) -> None:
    """Apply one of these actions."""
    match kind:
        case "deliver":
            _watch(world, store)
        case "adopt":
            store.refusing = False
            world.forget_metastore(store)
            world.register(store)
        case "read":
            assert store.leader is not None
            read_as_leader(world, store)
            store.agent.begin_term(store.leader.term)
        case "start":
            wanted = store.agent.to_start()
            assert wanted is not None
            store.replica = Replica(wanted.peer.id, wanted.configuration)
            store.agent.held = wanted.peer.replica
        case "lead":
            _lead(world, store)
        case "check":
            check(world, store)
        case "delete":
            _delete(store)
        case "wreck":
            _delete(store)
            forswear(world, store)
        case "confirm":
            forswear(world, store)
            txn = _confirmation(world, store)
            assert txn is not None
            world.send(store, "confirm", txn)
        case "timeout":
            store.waiting = 0
            if store.agent.waiting:
                store.agent.outcome_unknown()


def _delete(store: Store) -> None:
    store.replica, store.remembered = None, None


def forswear(world: World, store: Store) -> None:
    """Handle the tombstone: from now on no replica of the table is started."""
    see(world, store)


def see(world: World, store: Store) -> None:
    """Read linearizably; a store that reads an empty etcd sees nothing and reads again later."""
    _show(store, Seen(PartitionView(), None, world.watch_revision) if store.blank else world.seen())
    if not world.spend("lag"):
        store.watched = world.watch_revision


def _show(store: Store, seen: Seen) -> None:
    store.agent.see(seen.view, seen.table, revision=seen.revision)


def _watch(world: World, store: Store) -> None:
    """Deliver the newest state by the watch."""
    see(world, store)
    store.watched = world.watch_revision


def read_as_leader(world: World, store: Store) -> None:
    """Read linearizably at one revision, as a leader does at the start of its term."""
    see(world, store)


def group_view(world: World, store: Store) -> leader_decision.GroupView:
    """Return the group as the store's leading replica knows it."""
    me = store.replica
    assert me is not None
    applied, newest = me.applied(), me.newest()
    assert applied is not None
    assert newest is not None
    knowing = {id_ for id_, commit in me.known.items() if commit >= me.applied_index()} | {me.id}
    return leader_decision.GroupView(
        me=me.id,
        term=me.term,
        applied=applied,
        newest=newest,
        committed_in_term=me.term_at(me.commit) == me.term,
        caught_up=frozenset(id_ for id_, match in me.match.items() if match >= me.commit) | {me.id},
        answering=_answering(world, me),
        commit_known=applied.is_quorum(knowing),
    )


def _answering(world: World, me: Replica) -> frozenset[ReplicaId]:
    applied, newest = me.applied(), me.newest()
    assert applied is not None
    assert newest is not None
    reached = (world.reach(me.id, member) for member in applied.members() | newest.members())
    return frozenset(other.id for other in reached if other is not None and other.term <= me.term)


def _lead(world: World, store: Store) -> None:
    me = store.replica
    assert me is not None
    match store.agent.lead(group_view(world, store)):
        case leader_decision.Write(what, txn) as write:
            store.agent.sent(write)
            world.send(store, what, txn)
        case leader_decision.Propose(_, configuration) as propose:
            store.agent.proposed(propose)
            raft.append(me, Entry(me.term, configuration))
        case leader_decision.Transfer(to):
            elect(world, to)


def elect(world: World, candidate: ReplicaId) -> bool:
    """Run an election for this replica: it wins, or nothing changes."""
    me = world.reach(candidate, candidate)
    configuration = me.applied() if me is not None else None
    if me is None or configuration is None or candidate not in configuration.voter_ids():
        return False
    reached = [other for voter in configuration.voter_ids() if (other := world.reach(candidate, voter)) is not None]
    votes = raft.granted(me, reached)
    if not configuration.is_quorum(votes):
        return False
    raft.crown(me, [other for other in reached if other.id in votes])
    return True


def check(world: World, store: Store) -> None:
    """Read at one revision whether the keys exclude this store's replica."""
    assert store.replica is not None
    see(world, store)
    store.agent.confirm_exclusion(store.replica.id)


def may_delete(world: World, store: Store) -> bool:
    """Whether a leader with confirmed leadership says that this store's replica is not in its configuration."""
    assert store.replica is not None
    return leaders_word(world, store.replica.id)


def leaders_word(world: World, excluded: ReplicaId) -> bool:
    """Return the answer of a replica that can prove its leadership now."""
    for other in world.replicas():
        applied, newest = other.applied(), other.newest()
        if not other.leading or applied is None or newest is None or not world.stores[other.id[0]].reachable:
            continue
        if applied.is_quorum(_answering(world, other)) and replica_decision.leader_excludes(
            excluded, applied=applied, newest=newest, committed_in_term=other.term_at(other.commit) == other.term
        ):
            return True
    return False


def _confirmation(world: World, store: Store) -> Txn | None:
    tombstone = world.metastore.get(KEYS.tombstone(TABLE))
    return None if tombstone is None else table_lifecycle.confirm_drop(tombstone, store=store.name, volume=store.volume)


def on_result(world: World, store: Store, flight: InFlight, result: TxnResult) -> None:
    """Handle the result of this sidecar's transaction."""
    store.waiting = 0
    if flight.what != "confirm":
        store.agent.answered(result, revision=world.watch_revision)
