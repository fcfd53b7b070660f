"""Deleted tables with retained data.

keep       the record is marked as `dropped`, with the end of the retention; stores stop serving the table
restore    a Table with the annotation `evenkeel.dev/restore: <uid>` takes over the data instead of being created empty
maintain   replicas move off draining and replaced stores, but not otherwise
expire     after the retention the table is dropped like any other (`drop_table`)
adopt      during an adoption the record is written again, and stores publish their replicas, as for any table
"""

from __future__ import annotations

import msgspec
from pydantic import ValidationError

from evenkeel.errors import InvalidInputError, MalformedRecordError
from evenkeel.metastore.metastore_api import Compare
from evenkeel.model.conditions import parse_timestamp
from evenkeel.model.quantities import Duration
from evenkeel.model.resource_base import ObjectMeta
from evenkeel.model.storecluster import DroppedTable
from evenkeel.model.table import DEFAULT_UNDELETE_FOR, Table, TableSpec
from evenkeel.protocol import table_lifecycle
from evenkeel.protocol.keys import Keys, table_name
from evenkeel.protocol.records import Dropped, TableRecord, TableState
from evenkeel.reconcile.desired_table import DesiredTable, desired_table
from evenkeel.reconcile.planning import StaleSnapshotError, commit
from evenkeel.reconcile.reconcile_requests import Requests
from evenkeel.reconcile.table_snapshot import TableSnapshot, read_table
from evenkeel.reconcile.table_steps import UNKNOWN_PLANS, continue_plan, reconcile_table
from evenkeel.reconcile.table_validation import validate_desired

__all__ = [
    "RESTORE_ANNOTATION",
    "adopt_kept",
    "dropped_table",
    "keep_table",
    "maintain_kept_table",
    "restore_table",
    "restored_from",
    "retention_of",
    "to_be_adopted_as_kept",
]

RESTORE_ANNOTATION = "evenkeel.dev/restore"
"""On a new Table: the uid of the deleted Table whose data to restore."""


def restored_from(table: Table) -> str:
    """Return the key of the data that a Table was restored from, by its annotation; empty if it was not restored."""
    uid = table.metadata.annotations.get(RESTORE_ANNOTATION, "")
    return f"{table.metadata.name}.{uid}" if uid and table.status is not None and table.status.plan else ""


def retention_of(spec: TableSpec, *, now: float) -> Dropped:
    """Return the retention of a table that is deleted now."""
    until = None if spec.deletion_policy == "Retain" else now + spec.undelete_for.seconds
    return Dropped(since=now, until=until, undelete_for=str(spec.undelete_for))


def keep_table(dropped: Dropped, *, keys: Keys, table: str, epoch: Compare) -> Requests[bool]:
    """Retain the data of a ready table; return False if the table was never ready or is being dropped."""
    while True:
        snapshot = TableSnapshot(keys, table, (yield read_table(keys, table)))
        record = snapshot.record
        if record is None or snapshot.record_kv is None or record.state is not TableState.READY:
            return False
        if record.dropped is not None:
            return True
        try:
            yield from commit(table_lifecycle.keep(snapshot.record_kv, dropped, keys=keys, table=table, epoch=epoch))
        except StaleSnapshotError:
            continue


def restore_table(desired: DesiredTable, *, keys: Keys, table: str, uid: str, epoch: Compare) -> Requests[str]:
    """Give the data of the deleted Table with this uid to the Table whose key is `table`; return the data's key."""
    source = f"{table_name(table)}.{uid}"
    while True:
        snapshot = TableSnapshot(keys, source, (yield read_table(keys, source)))
        record = snapshot.record
        if snapshot.record_kv is None or record is None or record.dropped is None:
            raise InvalidInputError(
                f"{RESTORE_ANNOTATION}: got {uid!r}; allowed: the uid of a deleted Table {table_name(table)} whose "
                "data is retained (see status.dropped of the StoreCluster); correct or remove the annotation; no empty "
                "table is created"
            )
        validate_desired(snapshot, desired)
        try:
            yield from commit(table_lifecycle.restore(snapshot.record_kv, keys=keys, table=table, epoch=epoch))
        except StaleSnapshotError:
            continue
        return source


def to_be_adopted_as_kept(snapshot: TableSnapshot, listed: DroppedTable | None, request: str) -> bool:
    """Whether a deleted table that the metastore or the status lists has not been adopted yet."""
    if snapshot.tombstone_kv is not None:
        return False
    return listed is not None if snapshot.record is None else snapshot.record.adopted != request


def adopt_kept(
    listed: DroppedTable | None, *, keys: Keys, table: str, epoch: Compare, request: str, now: float
) -> Requests[None]:
    """Adopt a table without a Table.

    `listed` is its entry in the status. A backup may have the table from before its deletion, or a table whose data has
    been removed since. The two cannot be distinguished, so the data is retained until a user purges it.
    """
    while True:
        snapshot = TableSnapshot(keys, table, (yield read_table(keys, table)))
        if not to_be_adopted_as_kept(snapshot, listed, request):
            return
        record = snapshot.record
        if record is None:
            assert listed is not None
            record = _listed_record(listed)
        kept = record.dropped or Dropped(since=now, undelete_for=_undelete_for(record))
        if listed is not None:
            kept = msgspec.structs.replace(kept, since=_seconds(listed.deleted_at), until=_seconds(listed.kept_until))
        floor = max(listed.plan if listed is not None else 0, snapshot.next_plan - 1) + UNKNOWN_PLANS
        made, before = msgspec.structs.replace(record, dropped=kept, restored=""), snapshot.record_kv
        try:
            yield from commit(
                table_lifecycle.adopt(
                    made, before, request=request, plan_floor=floor, keys=keys, table=table, epoch=epoch
                )
            )
        except StaleSnapshotError:
            continue


def _listed_record(listed: DroppedTable) -> TableRecord:
    """Return the record of a table in the status; without a spec it can only be purged."""
    written = msgspec.Raw((listed.spec or "{}").encode())
    record = TableRecord(partitions=0, replicas=0, consensus_size=0, spec=written)
    if (spec := _read_spec(record)) is None:
        return record
    table = Table(metadata=ObjectMeta(name=listed.table, uid=listed.uid), spec=spec)
    return msgspec.structs.replace(desired_table(table).record, spec=written)


def _read_spec(record: TableRecord) -> TableSpec | None:
    try:
        return TableSpec.model_validate_json(bytes(record.spec), by_alias=True, by_name=False)
    except ValidationError:
        return None


def _undelete_for(record: TableRecord) -> str:
    spec = _read_spec(record)
    return str(spec.undelete_for if spec is not None else DEFAULT_UNDELETE_FOR)


def _seconds(moment: str | None) -> float | None:
    return None if moment is None else parse_timestamp(moment).timestamp()


def dropped_table(key: str, record: TableRecord, *, namespace: str) -> Table:
    """Return the Table as it was when it was deleted."""
    assert record.dropped is not None
    name, _, uid = key.partition(".")
    policy = "Retain" if record.dropped.until is None else "Delete"
    try:
        spec = TableSpec.model_validate_json(bytes(record.spec), by_alias=True, by_name=False)
    except ValidationError as error:
        raise MalformedRecordError(
            f"the spec of the deleted table {key} cannot be read: {error}; purge the table"
        ) from error
    kept = spec.model_copy(update={"deletion_policy": policy, "undelete_for": Duration(record.dropped.undelete_for)})
    return Table(metadata=ObjectMeta(name=name, namespace=namespace, uid=uid), spec=kept)


def maintain_kept_table(table: Table, *, keys: Keys, key: str, epoch: Compare, version: int) -> Requests[None]:
    """Move replicas off draining and replaced stores, and finish moves in progress; nothing else moves."""
    desired = desired_table(table, version=version)
    placed = msgspec.structs.replace(desired, mode="FullAuto", class_name=None, manual=False, choices={})
    snapshot = TableSnapshot(keys, key, (yield read_table(keys, key)))
    if snapshot.record is None or snapshot.record.dropped is None:
        return
    if _misplaced(snapshot, snapshot.record.partitions):
        yield from reconcile_table(placed, keys=keys, table=key, epoch=epoch)
    else:
        yield from continue_plan(placed, keys=keys, table=key, epoch=epoch)


def _misplaced(snapshot: TableSnapshot, partitions: int) -> bool:
    leaving = {store.name for store in snapshot.stores.stores if store.draining or not store.live}
    targets = (peers for row in range(partitions) for peers in snapshot.partition(row).peers())
    return any(peer.store in leaving or snapshot.gone(peer) for peer in targets)
