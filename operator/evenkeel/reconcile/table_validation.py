"""Refuses desired states that a table can never reach, before anything is written."""

from __future__ import annotations

from pydantic import ValidationError

from evenkeel.errors import InvalidInputError
from evenkeel.model.table import TableSpec
from evenkeel.model.update_rules import validate_table_update
from evenkeel.protocol.records import TableRecord, TableState
from evenkeel.reconcile.desired_table import DesiredTable
from evenkeel.reconcile.table_snapshot import TableSnapshot

__all__ = ["validate_desired"]


def validate_desired(snapshot: TableSnapshot, desired: DesiredTable) -> None:
    """Raise InvalidInputError if this table can never reach the desired state."""
    if snapshot.tombstone_kv is not None or (snapshot.record and snapshot.record.state is TableState.DROPPING):
        raise InvalidInputError(
            f"table {snapshot.table} is being dropped; wait until it is dropped, then create the Table again"
        )
    if snapshot.record is None:
        return
    if snapshot.record.partitions != desired.record.partitions:
        raise InvalidInputError(
            f"table {snapshot.table}: partitions: got {desired.record.partitions}; "
            f"allowed: {snapshot.record.partitions}, which cannot change after creation"
        )
    if bytes(snapshot.record.spec) == bytes(desired.record.spec):
        return
    before, after = _spec(snapshot.record), _spec(desired.record)
    if before is not None and after is not None and before != after:
        validate_table_update(before, after, source=f"Table {desired.view.name}")


def _spec(record: TableRecord) -> TableSpec | None:
    """Return a record's spec; None if it has none, or one of another release that cannot be read."""
    try:
        return TableSpec.model_validate_json(bytes(record.spec), by_alias=True, by_name=False)
    except ValidationError:
        return None
