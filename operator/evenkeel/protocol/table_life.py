"""How a table comes into being and goes.

Creating: the record says `creating`, a plan is written like any other, the stable keys follow in batches marked
`genesis`, then the record says `ready`. Dropping: the record says `dropping`, then one transaction removes
every key of the table and leaves a tombstone, which goes when every volume has confirmed that it holds nothing
of the table, or is gone for good.

Each function gives the next transactions from what is there, so that a crash anywhere is resumed by calling it again.
Sidecars act on `ready` tables only and compare the record in all they write.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

import msgspec

from evenkeel.errors import PlanningError
from evenkeel.metastore.api import Compare, Delete, KeyValue, Op, Put, Txn, absent, unchanged
from evenkeel.protocol.keys import Keys
from evenkeel.protocol.plan import Plan
from evenkeel.protocol.records import Stable, TableRecord, TableState, Tombstone, decode, encode, voters
from evenkeel.protocol.steps import assign_ids

__all__ = ["announce", "bury", "confirm_drop", "drop", "genesis", "make_ready", "mark_dropping"]

_BATCH = 60
"""Stable and trigger of this many partitions, with their comparisons, stay within etcd's limit."""


def announce(record: TableRecord, *, keys: Keys, table: str, epoch: Compare) -> Txn:
    """Begin to create the table; refused while it, or the tombstone of its uid, exists."""
    creating = msgspec.structs.replace(record, state=TableState.CREATING)
    compares = (epoch, absent(keys.table(table)), absent(keys.tombstone(table)))
    return Txn(compares, (Put(keys.table(table), encode(creating)),))


def genesis(
    plan: Plan, missing: Collection[int], *, keys: Keys, table: str, record: KeyValue, epoch: Compare
) -> Iterator[Txn]:
    """Write the first plan's targets as stable where there are none yet; replicas carry the plan's number."""
    todo = sorted(missing)
    guards = (epoch, unchanged(keys.table(table), record))
    for at in range(0, len(todo), _BATCH):
        compares, puts = list(guards), list[Op]()
        for partition in todo[at : at + _BATCH]:
            own = keys.partition(table, partition)
            peers = assign_ids(plan.target(partition), keep=(), plan=plan.n)
            if not voters(peers):
                raise PlanningError(
                    f"table {table}: plan {plan.n} gives partition {partition} no voter, so it is not created; "
                    "add stores or lower `replicas`"
                )
            compares.append(absent(own.stable))
            puts.append(Put(own.stable, encode(Stable(peers, genesis=True))))
            puts.append(Put(own.trigger, encode(plan.n)))
        yield Txn(tuple(compares), tuple(puts))


def make_ready(record: KeyValue, *, keys: Keys, table: str, epoch: Compare) -> Txn:
    """All stable keys are there: sidecars may act."""
    return _to_state(record, TableState.READY, keys=keys, table=table, epoch=epoch)


def mark_dropping(record: KeyValue, *, keys: Keys, table: str, epoch: Compare) -> Txn:
    """No more writes by sidecars from here on."""
    return _to_state(record, TableState.DROPPING, keys=keys, table=table, epoch=epoch)


def _to_state(record: KeyValue, state: TableState, *, keys: Keys, table: str, epoch: Compare) -> Txn:
    now = msgspec.structs.replace(decode(TableRecord, record.value, key=record.key), state=state)
    return Txn((epoch, unchanged(keys.table(table), record)), (Put(keys.table(table), encode(now)),))


def drop(record: KeyValue, volumes: Collection[tuple[str, str]], *, keys: Keys, table: str, epoch: Compare) -> Txn:
    """Remove every key of a `dropping` table at once; `volumes` are all (store, volume) that may hold data."""
    deletes = tuple(Delete(prefix, prefix=True) for prefix in keys.of_table(table))
    singles = (Delete(keys.rebalancer_context(table)), Delete(keys.table(table)))
    tombstone = Put(keys.tombstone(table), encode(Tombstone(tuple(sorted(volumes)))))
    return Txn((epoch, unchanged(keys.table(table), record)), (*deletes, *singles, tombstone))


def confirm_drop(tombstone: KeyValue, *, store: str, volume: str) -> Txn | None:
    """A sidecar's word that its volume holds nothing of the table; None if nobody waits for it.

    It is a promise: from the tombstone on, the sidecar starts no replica of this table, whatever an older view of the
    keys still asks for.
    """
    waiting = decode(Tombstone, tombstone.value, key=tombstone.key).waiting
    if (store, volume) not in waiting:
        return None
    left = Tombstone(tuple(entry for entry in waiting if entry != (store, volume)))
    return Txn((unchanged(tombstone.key, tombstone),), (Put(tombstone.key, encode(left)),))


def bury(tombstone: KeyValue, *, gone: Callable[[str, str], bool], epoch: Compare) -> Txn | None:
    """Remove the tombstone once every volume it waits for has confirmed or is gone for good."""
    waiting = decode(Tombstone, tombstone.value, key=tombstone.key).waiting
    if not all(gone(store, volume) for store, volume in waiting):
        return None
    return Txn((epoch, unchanged(tombstone.key, tombstone)), (Delete(tombstone.key),))
