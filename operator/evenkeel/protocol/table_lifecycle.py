"""Transactions that create, keep, restore, adopt and drop a table.

    create    the record's state is `creating`; a plan is written; the stable keys follow in batches, marked `genesis`;
              then the state is `ready`
    drop      the state is `dropping`; one transaction deletes all keys of the table and writes a tombstone; the
              tombstone is removed once each volume has confirmed that it holds no data of the table, or is lost
    keep      the Table was deleted, but its data stays: the record gets `dropped`, clients are no longer served, and
              replicas still move off stores that are removed; when the retention ends, the table is dropped
    restore   a Table of the same name with another uid takes over kept data; `restored/` maps its uid to the data
    adopt     the metastore was replaced or restored from a backup, and the stores have the data; one transaction
              deletes the table's keys, except its rebalancer's context, and writes the record as `ready`; the leaders
              then publish what raft runs (seed, see `leader_decision`)

Each function derives the next transactions from the present keys, so a crash is resumed by calling it again. Sidecars
act on `ready` tables only and compare the record in all their transactions.
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
    "confirm_drop",
    "drop",
    "genesis",
    "keep",
    "make_ready",
    "mark_dropping",
    "remove_tombstone",
    "restore",
]

_BATCH = 60
"""Partitions per genesis transaction; two puts and a comparison for each stay within etcd's limit."""


def announce(record: TableRecord, *, keys: Keys, table: str, epoch: Compare) -> Txn:
    """Start creating the table; fails while its record or its tombstone exists."""
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
    """Replace the table's keys by a new record, so that its leaders publish their configurations.

    `before` is the present record. Its mod revision changes, so transactions based on the old keys fail.
    """
    made = msgspec.structs.replace(record, state=TableState.READY, adopted=request, plan_floor=plan_floor)
    deletes = tuple(Delete(prefix, prefix=True) for prefix in keys.of_table(table))
    compares = (epoch, unchanged(keys.table(table), before), absent(keys.tombstone(table)))
    restored = (Put(keys.restored(made.restored), encode(table)),) if made.restored else ()
    return Txn(compares, (*deletes, Put(keys.table(table), encode(made)), *restored))


def genesis(
    plan: Plan, missing: Collection[int], *, keys: Keys, table: str, record: KeyValue, epoch: Compare
) -> Iterator[Txn]:
    """Write the first plan's targets as stable for the missing partitions, with the plan's number as replica id."""
    todo = sorted(missing)
    guards = (epoch, unchanged(keys.table(table), record))
    for at in range(0, len(todo), _BATCH):
        compares, puts = list(guards), list[Op]()
        for partition in todo[at : at + _BATCH]:
            own = keys.partition(table, partition)
            peers = assign_ids(plan.target(partition), keep=(), plan=plan.n)
            if not voters(peers):
                raise PlanningError(
                    f"table {table}: cannot create partition {partition}: plan {plan.n} gives it no voter; "
                    "add stores or lower `replicas`"
                )
            compares.append(absent(own.stable))
            puts.append(Put(own.stable, encode(Stable(peers, genesis=True))))
            puts.append(Put(own.trigger, encode(plan.n)))
        yield Txn(tuple(compares), tuple(puts))


def make_ready(record: KeyValue, *, keys: Keys, table: str, epoch: Compare) -> Txn:
    """Mark the table ready, once all stable keys exist; sidecars then act on it."""
    return _to_state(record, TableState.READY, keys=keys, table=table, epoch=epoch)


def mark_dropping(record: KeyValue, *, keys: Keys, table: str, epoch: Compare) -> Txn:
    """Mark the table as dropping; sidecars then write none of its keys."""
    return _to_state(record, TableState.DROPPING, keys=keys, table=table, epoch=epoch)


def _to_state(record: KeyValue, state: TableState, *, keys: Keys, table: str, epoch: Compare) -> Txn:
    now = msgspec.structs.replace(decode(TableRecord, record.value, key=record.key), state=state)
    return Txn((epoch, unchanged(keys.table(table), record)), (Put(keys.table(table), encode(now)),))


def keep(record: KeyValue, dropped: Dropped, *, keys: Keys, table: str, epoch: Compare) -> Txn:
    """Stop serving the table and keep its data."""
    before = decode(TableRecord, record.value, key=record.key)
    after = msgspec.structs.replace(before, dropped=dropped, restored="")
    deletes = (Delete(keys.restored(before.restored)),) if before.restored else ()
    return Txn((epoch, unchanged(record.key, record)), (Put(record.key, encode(after)), *deletes))


def restore(record: KeyValue, *, keys: Keys, table: str, epoch: Compare) -> Txn:
    """Give the data of a kept table to the new Table whose key is `table`."""
    before = decode(TableRecord, record.value, key=record.key)
    after = msgspec.structs.replace(before, dropped=None, restored=table)
    source = record.key.removeprefix(keys.table(""))
    compares = (epoch, unchanged(record.key, record), absent(keys.table(table)), absent(keys.restored(table)))
    return Txn(compares, (Put(record.key, encode(after)), Put(keys.restored(table), encode(source))))


def drop(record: KeyValue, volumes: Collection[tuple[str, str]], *, keys: Keys, table: str, epoch: Compare) -> Txn:
    """Delete all keys of a `dropping` table; `volumes` are all (store, volume) pairs that may hold its data."""
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
    """Confirm that the sidecar's volume holds no data of the table; None if the tombstone does not wait for it.

    From then on, the sidecar must not start a replica of this table, even if a stale view of the keys names it.
    """
    waiting = decode(Tombstone, tombstone.value, key=tombstone.key).waiting
    if (store, volume) not in waiting:
        return None
    left = Tombstone(tuple(entry for entry in waiting if entry != (store, volume)))
    return Txn((unchanged(tombstone.key, tombstone),), (Put(tombstone.key, encode(left)),))


def remove_tombstone(tombstone: KeyValue, *, gone: Callable[[str, str], bool], epoch: Compare) -> Txn | None:
    """Remove the tombstone, once each volume has confirmed the drop or is lost; None before that."""
    waiting = decode(Tombstone, tombstone.value, key=tombstone.key).waiting
    if not all(gone(store, volume) for store, volume in waiting):
        return None
    return Txn((epoch, unchanged(tombstone.key, tombstone)), (Delete(tombstone.key),))
