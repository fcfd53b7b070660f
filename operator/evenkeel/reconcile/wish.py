"""From resources, as users write them, to what a reconciliation of their table wants."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from evenkeel.model.partitionassignment import PartitionAssignment, choices
from evenkeel.model.table import Table
from evenkeel.protocol.records import Retarget, TableRecord
from evenkeel.reconcile.table import TableWish

__all__ = ["table_key", "wish_of"]


def table_key(table: Table) -> str:
    """`<name>.<uid>`: a table that is dropped and created again never meets old data."""
    return f"{table.metadata.name}.{table.metadata.uid}"


def wish_of(table: Table, assignments: Iterable[PartitionAssignment] = ()) -> TableWish:
    """What the user wants of the table; `assignments` are the table's own."""
    spec = table.spec
    written = spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    return TableWish(
        record=TableRecord(
            partitions=spec.partitions,
            replicas=spec.replicas,
            consensus_size=spec.voters,
            retarget=Retarget(spec.movement.retarget),
            spec=msgspec.Raw(msgspec.json.encode(written)),
        ),
        view=table.view(),
        mode=spec.rebalancer.mode,
        class_name=spec.rebalancer.class_name,
        max_concurrent=spec.movement.max_concurrent,
        choices=choices(assignments),
        manual=spec.approval == "Manual",
    )
