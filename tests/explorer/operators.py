"""Actions of an operator: write the spec and plans, apply a plan to the partition, create and drop the table."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from evenkeel.metastore.metastore_api import Compare, Put, Txn, TxnResult
from evenkeel.protocol import operator_decision, stored_plan, table_lifecycle
from evenkeel.protocol.partition_view import PartitionView
from evenkeel.protocol.records import Adoption, Peer, Retarget, TableRecord, TableState, encode, shape
from tests.explorer.world import KEYS, PARTITION, RECORD, TABLE, Action, InFlight, Operator, Target, World, target_of

Step = tuple[str, Txn]


def actions(world: World, operator: Operator) -> Iterator[Action]:
    """Return all actions of this operator that are possible now."""
    if operator.waiting:
        yield ("give-up", operator.name)
    elif operator.epoch_mod and next_step(world, operator) is not None:
        yield ("operate", operator.name)


def act(world: World, kind: str, operator: Operator) -> None:
    """Apply one of these actions, or take over the epoch."""
    match kind:
        case "operate":
            step = next_step(world, operator)
            assert step is not None
            world.send(operator, *step)
        case "give-up":
            operator.waiting = 0
        case "takeover":
            world.send(operator, "epoch", Txn(success=(Put(KEYS.epoch, operator.name.encode()),)))


def on_result(world: World, operator: Operator, flight: InFlight, result: TxnResult) -> None:
    """Handle the result of this operator's transaction."""
    operator.waiting = 0
    if flight.what == "epoch":
        operator.epoch_mod = result.revision
    elif not result.succeeded:
        epoch = world.metastore.get(KEYS.epoch)
        if epoch is None or epoch.mod_revision != operator.epoch_mod:
            operator.epoch_mod = 0


def next_step(world: World, operator: Operator) -> Step | None:
    """Return the next transaction towards the user's target, from the metastore at this revision."""
    epoch = Compare(KEYS.epoch, "mod", "=", operator.epoch_mod)
    if not world.asked:
        return None  # the StoreCluster's status names another metastore
    if world.request and world.adoption() != str(world.request):
        return _adopt(world, epoch)
    record, mod = world.record()
    if record is None:
        return _without_table(world, epoch)
    if world.desired.voters is None:
        return _drop(world, record, epoch)
    wanted = msgspec.Raw(encode(world.desired))
    if bytes(record.spec) != bytes(wanted):
        mirrored = msgspec.structs.replace(record, spec=wanted)
        return "spec", Txn((epoch, Compare(RECORD, "mod", "=", mod)), (Put(RECORD, encode(mirrored)),))
    return _create(world, epoch) if record.state is TableState.CREATING else _rebalance(world, epoch)


def _adopt(world: World, epoch: Compare) -> Step | None:
    """Take the table's record from the user, then let stores follow; a drop in progress continues."""
    request = str(world.request)
    if not world.adopted() and world.metastore.get(KEYS.tombstone(TABLE)) is None:
        kv = world.metastore.get(RECORD)
        voters, learners = world.desired.voters or world.scenario.targets[0].voters, world.desired.learners
        record = TableRecord(
            partitions=1,
            replicas=1,
            consensus_size=1,
            retarget=world.scenario.mode,
            spec=msgspec.Raw(encode(Target(voters, learners))),
        )
        floor = plan_floor(world)
        return "adopt", table_lifecycle.adopt(
            record, kv, request=request, plan_floor=floor, keys=KEYS, table=TABLE, epoch=epoch
        )
    return "open", Txn((epoch,), (Put(KEYS.adoption, encode(Adoption("1", request))),))


def plan_floor(world: World) -> int:
    """Return the number that plan numbers must exceed, as far as statuses show."""
    return world.planned + 1000


def _without_table(world: World, epoch: Compare) -> Step | None:
    tombstone = world.metastore.get(KEYS.tombstone(TABLE))
    if tombstone is not None:
        txn = table_lifecycle.remove_tombstone(
            tombstone, gone=lambda store, volume: gone_for_good(world, store, volume), epoch=epoch
        )
        return None if txn is None else ("remove tombstone", txn)
    if world.desired.voters is None or world.planned:
        return None
    record = TableRecord(
        partitions=1,
        replicas=1,
        consensus_size=1,
        retarget=world.scenario.mode,
        spec=msgspec.Raw(encode(world.desired)),
    )
    return "announce", table_lifecycle.announce(record, keys=KEYS, table=TABLE, epoch=epoch)


def gone_for_good(world: World, store: str, volume: str) -> bool:
    """Whether the volume was replaced, or a user declared that its store will not come back.

    A lost store alone is not gone for good: it may return with all its data.
    """
    return world.registered(store) not in ("", volume) or (world.stores[store].lost and world.declared_lost(store))


def _drop(world: World, record: TableRecord, epoch: Compare) -> Step:
    kv = world.metastore.get(RECORD)
    assert kv is not None
    if record.state is not TableState.DROPPING:
        return "dropping", table_lifecycle.mark_dropping(kv, keys=KEYS, table=TABLE, epoch=epoch)
    volumes = [(store.name, store.volume) for store in world.stores.values()]
    return "drop", table_lifecycle.drop(kv, volumes, keys=KEYS, table=TABLE, epoch=epoch)


def _create(world: World, epoch: Compare) -> Step | None:
    kv = world.metastore.get(RECORD)
    assert kv is not None
    newest = newest_plan(world)
    if newest is None or not newest.slices[0].voters:
        n = 1 if newest is None else newest.n + 1
        return ("plan", _plan_txn(world, n, epoch)) if _wanted(world, n).slices[0].voters else None
    if world.view().stable is None:
        (txn,) = table_lifecycle.genesis(newest, [0], keys=KEYS, table=TABLE, record=kv, epoch=epoch)
        return "genesis", txn
    return "ready", table_lifecycle.make_ready(kv, keys=KEYS, table=TABLE, epoch=epoch)


def newest_plan(world: World) -> stored_plan.Plan | None:
    """Read the active plan, as a successor would."""
    return world.derived("plan", lambda: _read_plan(world))


def _read_plan(world: World) -> stored_plan.Plan | None:
    head = world.metastore.get(KEYS.plan_head(TABLE))
    if head is None:
        return None
    n = msgspec.json.decode(head.value)["n"]
    return stored_plan.read_plan(head, world.metastore.range(KEYS.plan_slices(TABLE, n)).kvs)


def _wanted(world: World, n: int) -> stored_plan.Plan:
    record, _ = world.record()
    assert record is not None
    voters, learners = msgspec.json.decode(bytes(record.spec))
    usable = world.volumes()
    row, count = target_of(Target(tuple(voters), tuple(learners)), usable, world.scenario.stores)
    return stored_plan.make_plan([row], n=n, inputs=world.metastore.revision, voters=count, volumes=usable)


def _plan_txn(world: World, n: int, epoch: Compare) -> Txn:
    head = world.metastore.get(KEYS.plan_head(TABLE))
    mod = 0 if head is None else head.mod_revision
    made = make_plan(world, n)
    (txn,) = stored_plan.write_plan(made, keys=KEYS, table=TABLE, head_mod=mod, guards=(epoch, world.holds_table()))
    return txn


def make_plan(world: World, n: int) -> stored_plan.Plan:
    """Compute plan n from the present keys."""
    return _wanted(world, n)


def _rebalance(world: World, epoch: Compare) -> Step | None:
    newest = newest_plan(world)
    if newest is None:
        record, _ = world.record()
        assert record is not None
        return None if world.view().stable is None else ("plan", _plan_txn(world, record.plan_floor + 1, epoch))
    n = newest.n
    wanted = world.derived("wanted", lambda: shape(_wanted(world, n).target(0)))
    if shape(newest.target(0)) != wanted:
        return "plan", _plan_txn(world, newest.n + 1, epoch)
    view = world.view()
    decision = retarget(view, newest, mode=world.scenario.mode, volumes=world.volumes())
    if not decision.ops:
        return None
    head = world.metastore.get(KEYS.plan_head(TABLE))
    assert head is not None
    guards = (epoch, Compare(head.key, "mod", "=", head.mod_revision))
    return "retarget", Txn((*guards, *view.compares(PARTITION)), decision.ops)


def retarget(
    view: PartitionView, newest: stored_plan.Plan, *, mode: Retarget, volumes: dict[str, str]
) -> operator_decision.Decision:
    """Apply the operator's decision to the only partition."""

    def gone(peer: Peer) -> bool:
        return volumes.get(peer.store) != peer.volume

    return operator_decision.retarget(view, newest.target(0), keys=PARTITION, plan=newest.n, mode=mode, gone=gone)
