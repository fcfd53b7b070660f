"""The hash of a world, by which exhaustive search recognizes visited states.

Only the order and identity of revisions matter, so they are replaced by their rank. Two paths to the same state then
have the same hash, even if they took different numbers of transactions.
"""

from __future__ import annotations

import re

from evenkeel.metastore.metastore_api import Put
from evenkeel.protocol.group_configuration import Configuration
from evenkeel.protocol.partition_view import PartitionView
from tests.explorer.raft import Replica
from tests.explorer.sidecars import to_show
from tests.explorer.world import InFlight, Store, World

_TOKEN = re.compile(rb'"token":(\d+)|"inputs":(\d+)')


def fingerprint(world: World) -> int:
    """Return a hash of everything that can make a difference later."""
    rank = _ranks(world)
    kvs = world.metastore.range("").kvs
    return hash((
        tuple((kv.key, rank[kv.mod_revision], *_value(kv.value, rank)) for kv in kvs),
        tuple(_store(store, world, rank) for store in world.stores.values()),
        tuple((rank[operator.epoch_mod], bool(operator.waiting)) for operator in world.operators.values()),
        tuple(sorted(_flight(flight, world, rank) for flight in world.flights)),
        world.desired,
        tuple(sorted(world.budget.items())),
        world.trigger, world.planned, world.request, world.asked,
    ))  # fmt: skip


def _value(value: bytes, rank: dict[int, int]) -> tuple[object, ...]:
    return (_TOKEN.sub(b"", value), *(rank[int(token)] for token, _ in _TOKEN.findall(value) if token))


def _flight(flight: InFlight, world: World, rank: dict[int, int]) -> tuple[object, ...]:
    sender = world.stores.get(flight.sender) or world.operators[flight.sender]
    awaited = sender.boot == flight.boot and sender.waiting == flight.number
    compares = tuple((c.key, rank[c.operand] if isinstance(c.operand, int) else -1) for c in flight.txn.compares)
    puts = tuple((op.key, _TOKEN.sub(b"", op.value) if isinstance(op, Put) else b"") for op in flight.txn.success)
    return (flight.sender, flight.what, awaited, compares, puts)


def _store(store: Store, world: World, rank: dict[int, int]) -> tuple[object, ...]:
    agent, me = store.agent, store.replica
    view, compared = agent.view, agent.lock_compared
    return (
        store.volume, store.lost, store.refusing, agent.held, store.up, store.paused, store.cut, store.blank,
        bool(store.waiting),
        agent.waiting, store.watched < world.watch_revision, agent.seen < agent.need,
        0 if agent.table is None else rank[agent.table.mod_revision],
        me is not None and agent.confirmed_excluded == me.id,
        me is not None and me.leading and agent.read_term == me.term,
        rank[agent.lock_mod], rank[agent.seeding],
        None if compared is None else tuple(rank[mod] for mod in compared),
        None if view is None else _view(view, rank),
        tuple((_view(past.view, rank), past.revision < agent.seen) for past in to_show(world, store)),
        None if me is None else _replica(me, rank),
    )  # fmt: skip


def _view(view: PartitionView, rank: dict[int, int]) -> tuple[object, ...]:
    return (*(rank[mod] for mod in view.mods()), view.stable, view.pending, view.planned)


def _replica(replica: Replica, rank: dict[int, int]) -> tuple[object, ...]:
    return (
        replica.id, replica.term, replica.base, replica.base_term, replica.commit, replica.leading,
        _configuration(replica.base_configuration, rank),
        tuple((entry.term, _configuration(entry.configuration, rank), entry.write) for entry in replica.log),
        tuple(sorted(replica.match.items())), tuple(sorted(replica.known.items())),
    )  # fmt: skip


def _configuration(configuration: Configuration | None, rank: dict[int, int]) -> object:
    if configuration is None:
        return None
    return (configuration.peers, configuration.outgoing, configuration.staged, rank[configuration.token])


def _ranks(world: World) -> dict[int, int]:
    revisions = {0}
    for kv in world.metastore.range("").kvs:
        revisions.add(kv.mod_revision)
        revisions.update(int(token) for token, _ in _TOKEN.findall(kv.value) if token)
    for store in world.stores.values():
        agent = store.agent
        revisions.update((agent.lock_mod, agent.seeding, *(agent.lock_compared or ())))
        revisions.update(agent.view.mods() if agent.view is not None else ())
        for past in to_show(world, store):
            revisions.update(past.view.mods())
        revisions.add(0 if agent.table is None else agent.table.mod_revision)
        if store.replica is not None:
            configurations = [store.replica.base_configuration, *(entry.configuration for entry in store.replica.log)]
            revisions.update(c.token for c in configurations if c is not None)
    for operator in world.operators.values():
        revisions.add(operator.epoch_mod)
    for flight in world.flights:
        revisions.update(c.operand for c in flight.txn.compares if isinstance(c.operand, int))
    return {revision: at for at, revision in enumerate(sorted(revisions))}
