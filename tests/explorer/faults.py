"""Actions of users, machines and networks, within a budget; recovery costs nothing."""

from __future__ import annotations

from collections.abc import Iterator

from evenkeel.metastore.metastore_api import Delete, Put, Txn
from evenkeel.metastore.mvcc import Mvcc
from evenkeel.protocol.group_configuration import Configuration
from evenkeel.protocol.records import ReplicaId, StoreState, encode
from tests.explorer import raft
from tests.explorer.raft import Entry
from tests.explorer.world import KEYS, TABLE, Action, Operator, Store, World

BUDGETED = frozenset(
    (
        "desired",
        "write",
        "compact",
        "crash",
        "pause",
        "cut",
        "wipe",
        "lose",
        "declare",
        "takeover",
        "halt",
        "blank",
        "vanish",
        "mute",
        "glimpse",
        "lag",
        "backup",
        "replace",
        "readopt",
    )
)


def actions(world: World) -> Iterator[Action]:
    """Return all faults and user actions that are possible now."""
    if world.spend("desired"):
        for index, desired in enumerate(world.scenario.targets):
            if desired != world.desired and world.desired.voters is not None and index:
                yield ("desired", str(index))
    yield from _metastore_actions(world)
    leaderless = not any(in_charge(world, operator) for operator in world.operators.values())
    for operator in world.operators.values():
        if not operator.epoch_mod and not operator.waiting and (leaderless or world.spend("takeover")):
            yield ("takeover", operator.name)
        if operator.waiting and world.spend("halt"):
            yield ("halt", operator.name)
    for store in world.stores.values():
        if not store.lost:
            yield from _store_actions(world, store)
        elif not world.declared_lost(store.name):
            yield ("declare", store.name)


def _metastore_actions(world: World) -> Iterator[Action]:
    """Return replacements of etcd by an empty one or one from a backup, and the user's adoption requests.

    There are none before a majority of the group has started, because the stores would not have the table's data.
    """
    if world.spend("backup") and world.planned:
        yield ("backup", "all")
    if world.spend("replace") and world.planned and can_lose(world, ""):
        yield ("replace", "empty")
        if world.backup is not None:
            yield ("replace", "older")
    if not world.asked or (world.spend("readopt") and world.planned and can_lose(world, "")):
        yield ("readopt", "all")


def _store_actions(world: World, store: Store) -> Iterator[Action]:
    name = store.name
    if store.up:
        for kind, heal, state in (
            ("pause", "resume", store.paused),
            ("cut", "mend", store.cut),
            ("blank", "unblank", store.blank),
        ):
            if state:
                yield (heal, name)
            elif world.spend(kind):
                yield (kind, name)
        if world.spend("crash"):
            yield ("crash", name)
        if world.declared_lost(store.name) and world.registered(name):
            yield ("undeclare", name)
        if store.leader is not None and world.spend("write") and _takes_writes(store):
            yield ("write", name)
        if (
            store.running
            and store.replica is not None
            and store.replica.commit > store.replica.base
            and world.spend("compact")
        ):
            yield ("compact", name)
    else:
        yield ("restart", name)
        if world.spend("declare") and not world.declared_lost(store.name):
            yield ("declare", name)
    for kind in ("wipe", "lose"):
        if world.spend(kind) and can_lose(world, name):
            yield (kind, name)


def _takes_writes(store: Store) -> bool:
    """Whether the replica accepts writes; an outgoing leader accepts none from joint on."""
    replica = store.replica
    assert replica is not None
    applied = replica.applied()
    assert applied is not None
    return not applied.joint or replica.id in {peer.id for peer in applied.peers}


def in_charge(world: World, operator: Operator) -> bool:
    """Whether the operator holds the epoch, or is about to learn whether it does."""
    epoch = world.metastore.get(KEYS.epoch)
    return operator.waiting != 0 or (epoch is not None and epoch.mod_revision == operator.epoch_mod)


def can_lose(world: World, name: str) -> bool:
    """Whether every configuration that may be in force keeps a majority of existing replicas."""
    present: set[ReplicaId] = set()
    for store in world.stores.values():
        if store.replica is not None and not store.lost and store.name != name:
            present.add(store.replica.id)
    configurations = list(in_force(world))
    return bool(configurations) and all(configuration.is_quorum(present) for configuration in configurations)


def in_force(world: World) -> Iterator[Configuration]:
    """Return the newest committed configuration and all that may still be committed after it."""
    newest = committed_configuration(world)
    if newest is None:
        return
    since, configuration = newest
    yield configuration
    for store in world.stores.values():
        replica = store.replica
        if replica is None or store.lost:
            continue
        for at, entry in enumerate(replica.log):
            if entry.configuration is not None and replica.base + at + 1 > since:
                yield entry.configuration


def committed_configuration(world: World) -> tuple[int, Configuration] | None:
    """Return the newest configuration that any replica knows to be committed, and its index."""
    for index in sorted(world.committed, reverse=True):
        configuration = world.committed[index].configuration
        if configuration is not None:
            return index, configuration
    bases = [
        s.replica for s in world.stores.values() if s.replica is not None and s.replica.base_configuration is not None
    ]
    newest = max(bases, key=lambda replica: replica.base, default=None)
    if newest is None or newest.base_configuration is None:
        return None
    return newest.base, newest.base_configuration


def act(world: World, kind: str, name: str) -> None:
    """Apply one of these actions."""
    if kind in BUDGETED and world.spend(kind):
        world.budget[kind] -= 1
    if kind == "desired":
        world.desired = world.scenario.targets[int(name)]
    elif kind in ("backup", "replace", "readopt"):
        _act_on_metastore(world, kind, name)
    elif kind == "halt":
        operator = world.operators[name]
        operator.boot, operator.waiting, operator.epoch_mod = operator.boot + 1, 0, 0
    else:
        _act_on_store(world, kind, world.stores[name])


def _act_on_metastore(world: World, kind: str, how: str) -> None:
    if kind == "backup":
        world.backup = world.metastore.clone()
    elif kind == "readopt":
        world.request, world.asked = world.request + 1, True
    else:
        other = world.backup if how == "older" else None
        world.replace_metastore(Mvcc(keep_history=False) if other is None else other.clone())


_FLAGS = {
    "pause": ("paused", True), "resume": ("paused", False), "cut": ("cut", True), "mend": ("cut", False),
    "blank": ("blank", True), "unblank": ("blank", False),
}  # fmt: skip


def _act_on_store(world: World, kind: str, store: Store) -> None:
    if kind in _FLAGS:
        setattr(store, *_FLAGS[kind])
    match kind:
        case "blank" | "unblank":
            store.watched = 0
        case "crash" | "lose":
            _stop(store)
            store.lost = kind == "lose"
        case "restart":
            store.start_process()
            if not store.refusing:
                world.register(store)
        case "wipe":
            _stop(store)
            if store.replica is not None:
                world.wiped |= {store.replica.id}
            store.replica = None
            store.refusing = False
            store.mount(int(store.volume.split("-")[1]) + 1)
        case "declare":
            state = StoreState(volume=world.registered(store.name), replace_in=(TABLE,))
            world.run(Txn(success=(Put(KEYS.store_state(store.name), encode(state)),)))
        case "undeclare":
            world.run(Txn(success=(Delete(KEYS.store_state(store.name)),)))
        case "write" | "compact":
            _act_on_replica(world, kind, store.replica)


def _act_on_replica(world: World, kind: str, replica: raft.Replica | None) -> None:
    assert replica is not None
    if kind == "compact":
        replica.compact()
        return
    world.writes += 1
    raft.append(replica, Entry(replica.term, write=world.writes))


def _stop(store: Store) -> None:
    store.up, store.paused = False, False
    if store.replica is not None:
        store.replica.restart()
