"""How a table comes into being and goes.

Creating: the record says `creating`, a plan is written like any other, the stable keys follow in batches marked
`genesis`, then the record says `ready`. Dropping: the record says `dropping`, then one transaction removes
every key of the table and leaves a tombstone, which goes when every volume has confirmed that it holds nothing
of the table, or is gone for good.

Keeping: the record says `dropped`, and everything else stays as it is; nobody is served, but replicas are still moved
off stores that leave. Restoring: another Table, of the same name and another uid, takes the data over; `restored/` says
so. A kept table whose time is over is dropped as above.

Adopting: the metastore was replaced, or restored from an older state, and the stores have the table's data. One
transaction removes whatever is there of the table but its rebalancer's memory, and writes the record anew, as `ready`.
A ready table without stable keys exists in no other case, and their leaders then publish what raft runs (`leader`).

Each function gives the next transactions from what is there, so that a crash anywhere is resumed by calling it again.
Sidecars act on `ready` tables only and compare the record in all they write.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

import msgspec

from evenkeel.errors import PlanningError
from evenkeel.metastore.metastore_api import Compare, Delete, KeyValue, Op, Put, Txn, absent, unchanged
from evenkeel.protocol.change_steps import assign_ids
from evenkeel.protocol.keys import Keys
from evenkeel.protocol.records import Dropped, Stable, TableRecord, TableState, Tombstone, decode, encode, voters
from evenkeel.protocol.stored_plan import Plan

__all__ = [
    "adopt",
    "announce",
    "bury",
    "confirm_drop",
    "drop",
    "genesis",
    "keep",
    "make_ready",
    "mark_dropping",
    "restore",
]

_BATCH = 60
"""Stable and trigger of this many partitions, with their comparisons, stay within etcd's limit."""


def announce(record: TableRecord, *, keys: Keys, table: str, epoch: Compare) -> Txn:
    """Begin to create the table; refused while it, or the tombstone of its uid, exists."""
    creating = msgspec.structs.replace(record, state=TableState.CREATING)
    compares = (epoch, absent(keys.table(table)), absent(keys.tombstone(table)))
    return Txn(compares, (Put(keys.table(table), encode(creating)),))


def adopt(
    record: TableRecord,
    before: KeyValue | None,
    *,
    request: str,
    plan_floor: int,
    keys: Keys,
    table: str,
    epoch: Compare,
) -> Txn:
    """Take the table's record from the user and the rest from its stores, whatever the metastore says of it.

    `before` is the record as it is; it gets another mod revision, so nothing that rests on the old keys can land.
    """
    made = msgspec.structs.replace(record, state=TableState.READY, adopted=request, plan_floor=plan_floor)
    deletes = tuple(Delete(prefix, prefix=True) for prefix in keys.of_table(table))
    compares = (epoch, unchanged(keys.table(table), before), absent(keys.tombstone(table)))
    restored = (Put(keys.restored(made.restored), encode(table)),) if made.restored else ()
    return Txn(compares, (*deletes, Put(keys.table(table), encode(made)), *restored))


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


def keep(record: KeyValue, dropped: Dropped, *, keys: Keys, table: str, epoch: Compare) -> Txn:
    """Serve nobody any more, and keep all data."""
    before = decode(TableRecord, record.value, key=record.key)
    after = msgspec.structs.replace(before, dropped=dropped, restored="")
    deletes = (Delete(keys.restored(before.restored)),) if before.restored else ()
    return Txn((epoch, unchanged(record.key, record)), (Put(record.key, encode(after)), *deletes))


def restore(record: KeyValue, *, keys: Keys, table: str, epoch: Compare) -> Txn:
    """Give the data of a kept table to the Table whose key is `table`, which has none of its own."""
    before = decode(TableRecord, record.value, key=record.key)
    after = msgspec.structs.replace(before, dropped=None, restored=table)
    source = record.key.removeprefix(keys.table(""))
    compares = (epoch, unchanged(record.key, record), absent(keys.table(table)), absent(keys.restored(table)))
    return Txn(compares, (Put(record.key, encode(after)), Put(keys.restored(table), encode(source))))


def drop(record: KeyValue, volumes: Collection[tuple[str, str]], *, keys: Keys, table: str, epoch: Compare) -> Txn:
    """Remove every key of a `dropping` table at once; `volumes` are all (store, volume) that may hold data."""
    deletes = tuple(Delete(prefix, prefix=True) for prefix in keys.of_table(table))
    restored = decode(TableRecord, record.value, key=record.key).restored
    singles = (
        Delete(keys.rebalancer_context(table)),
        Delete(keys.table(table)),
        *((Delete(keys.restored(restored)),) if restored else ()),
    )
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
