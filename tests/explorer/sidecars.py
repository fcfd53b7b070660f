"""What a store's sidecar may do next, by the protocol's own decisions: watch, start, lead, check, delete."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from evenkeel.metastore.api import Compare, Txn, TxnResult
from evenkeel.protocol import leader, replica, table_life
from evenkeel.protocol.partition import PartitionView
from evenkeel.protocol.records import ReplicaId, TableState
from tests.explorer import raft
from tests.explorer.raft import Entry, Replica
from tests.explorer.world import KEYS, PARTITION, TABLE, Action, InFlight, Store, World


def actions(world: World, store: Store) -> Iterator[Action]:
    """Everything this store may do now of its own accord."""
    name = store.name
    if not store.running:
        return
    if store.waiting:
        yield ("timeout", name)
    if store.seen < world.watch_revision:
        yield ("deliver", name)
        yield from _glimpses(world, store)
    if to_start(store) is not None:
        yield ("start", name)
    if store.leader is not None and not store.waiting and store.record_mod:
        if store.read_term != store.leader.term:
            yield ("read", name)
        elif store.seen >= store.need and next_action(world, store) is not None:
            yield ("lead", name)
    yield from _deletions(world, store)


def _glimpses(world: World, store: Store) -> Iterator[Action]:
    """Each kind of key may have a watch of its own, which is ahead of the others for a while."""
    if store.view is None or store.blank or not world.spend("glimpse"):
        return
    now = world.view()
    for kind in ("stable", "pending", "planned", "lock"):
        if getattr(now, f"{kind}_mod") != getattr(store.view, f"{kind}_mod"):
            yield ("glimpse", store.name, kind)


def glimpse(world: World, store: Store, kind: str) -> None:
    """One of the keys is seen as it is now, the others stay as they were seen before."""
    assert store.view is not None
    now = world.view()
    news = {name: getattr(now, name) for name in (kind, f"{kind}_mod")}
    store.view = msgspec.structs.replace(store.view, **news)


def _deletions(world: World, store: Store) -> Iterator[Action]:
    if store.replica is not None and store.cleared == store.replica.id:
        if may_delete(world, store):
            yield ("delete", store.name)
    elif store.replica is not None and store.view is not None and suspects(store.view, store.replica.id):
        yield ("check", store.name)
    if not store.blank and not store.waiting and world.metastore.get(KEYS.tombstone(TABLE)) is not None:
        if store.replica is not None:
            yield ("wreck", store.name)
        elif _confirmation(world, store) is not None:
            yield ("confirm", store.name)


def act(world: World, kind: str, store: Store) -> None:
    """Do one of the above."""
    match kind:
        case "deliver":
            see(world, store)
        case "read":
            store.view, store.lock_mod = read_as_leader(world, store), 0
            assert store.leader is not None
            store.read_term = store.leader.term
        case "start":
            wanted = to_start(store)
            assert wanted is not None
            store.replica = Replica(wanted.peer.id, wanted.configuration)
            store.held = wanted.peer.replica
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
            store.waiting, store.read_term, store.lock_mod = 0, 0, 0


def _delete(store: Store) -> None:
    store.replica, store.cleared, store.remembered = None, None, None


def forswear(world: World, store: Store) -> None:
    """The table is gone: nothing an older view asks for is started any more."""
    see(world, store)


def see(world: World, store: Store) -> None:
    """The watch catches up; a store that looks at an empty etcd sees nothing, and will look again."""
    if store.blank:
        store.view, store.record_mod, store.seen = PartitionView(), 0, world.watch_revision
        return
    store.view = world.view()
    store.seen = world.watch_revision
    record, mod = world.record()
    store.record_mod = mod if record is not None and record.state is TableState.READY else 0


def read_as_leader(world: World, store: Store) -> PartitionView:
    """The linearizable read at one revision with which a leader begins its term."""
    see(world, store)
    assert store.view is not None
    return store.view


def to_start(store: Store) -> replica.Start | None:
    """The replica to start, if the table is ready and no other replica of the group is still there."""
    if store.replica is not None or store.view is None or not store.record_mod:
        return None
    return replica.start(store.view, store=store.name, volume=store.volume, newest_held=store.held)


def group_view(world: World, store: Store) -> leader.GroupView:
    """What the store's leading replica knows of its group."""
    me = store.replica
    assert me is not None
    applied, newest = me.applied(), me.newest()
    assert applied is not None
    assert newest is not None
    knowing = {id_ for id_, commit in me.known.items() if commit >= me.applied_index()} | {me.id}
    assert store.view is not None
    return leader.GroupView(
        me=me.id,
        term=me.term,
        applied=applied,
        newest=newest,
        committed_in_term=me.term_at(me.commit) == me.term,
        caught_up=frozenset(id_ for id_, match in me.match.items() if match >= me.commit) | {me.id},
        answering=_answering(world, me),
        commit_known=applied.is_quorum(knowing),
        lock_mod=store.lock_mod,
        lock_outstanding=store.lock_compared == (store.view.pending_mod, store.view.lock_mod),
    )


def _answering(world: World, me: Replica) -> frozenset[ReplicaId]:
    applied, newest = me.applied(), me.newest()
    assert applied is not None
    assert newest is not None
    reached = (world.reach(me.id, member) for member in applied.members() | newest.members())
    return frozenset(other.id for other in reached if other is not None and other.term <= me.term)


def next_action(world: World, store: Store) -> leader.Action | None:
    """What the protocol has this leader do."""
    assert store.view is not None
    return leader.next_action(
        store.view,
        group_view(world, store),
        keys=PARTITION,
        mode=world.scenario.mode,
        table=Compare(KEYS.table(TABLE), "mod", "=", store.record_mod),
    )


def _lead(world: World, store: Store) -> None:
    action, me, view = next_action(world, store), store.replica, store.view
    assert me is not None
    assert view is not None
    match action:
        case leader.Write(what, txn):
            if what == "lock":
                store.lock_compared = (view.pending_mod, view.lock_mod)
            store.lock_mod = 0
            world.send(store, what, txn)
        case leader.Propose(_, configuration):
            raft.append(me, Entry(me.term, configuration))
        case leader.Transfer(to):
            elect(world, to)


def elect(world: World, candidate: ReplicaId) -> bool:
    """An election for this replica: it wins, or nothing happens."""
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


def suspects(view: PartitionView, id_: ReplicaId) -> bool:
    """Whether what the watch last showed makes it worth asking if the replica may go."""
    return replica.excluded(view, id_)


def check(world: World, store: Store) -> None:
    """Read at one revision whether the keys leave this store's replica out."""
    see(world, store)
    assert store.view is not None
    assert store.replica is not None
    store.cleared = store.replica.id if replica.excluded(store.view, store.replica.id) else None


def may_delete(world: World, store: Store) -> bool:
    """Whether a leader, sure that it still leads, says that this store's replica is not in its configuration."""
    assert store.replica is not None
    return leaders_word(world, store.replica.id)


def leaders_word(world: World, excluded: ReplicaId) -> bool:
    """The answer of whoever can prove now that it leads."""
    for other in world.replicas():
        applied, newest = other.applied(), other.newest()
        if not other.leading or applied is None or newest is None or not world.stores[other.id[0]].reachable:
            continue
        if applied.is_quorum(_answering(world, other)) and replica.leader_excludes(
            excluded, applied=applied, newest=newest, committed_in_term=other.term_at(other.commit) == other.term
        ):
            return True
    return False


def _confirmation(world: World, store: Store) -> Txn | None:
    tombstone = world.metastore.get(KEYS.tombstone(TABLE))
    return None if tombstone is None else table_life.confirm_drop(tombstone, store=store.name, volume=store.volume)


def on_result(world: World, store: Store, flight: InFlight, result: TxnResult) -> None:
    """The answer to a transaction this sidecar waited for."""
    store.waiting = 0
    store.need = world.watch_revision
    if flight.what == "lock":
        store.lock_compared = None
        store.lock_mod = result.revision if result.succeeded else 0
