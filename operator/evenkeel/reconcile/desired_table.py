"""What a reconciliation of a table works towards, and how it follows from the resources that users write."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from evenkeel.model.partitionassignment import PartitionAssignment, choices
from evenkeel.model.rebalanceplan import RebalancePlan
from evenkeel.model.table import Table
from evenkeel.model.views import Choice, TableView
from evenkeel.protocol.records import Retarget, TableRecord, TableState, encode
from evenkeel.reconcile.table_record import spec_for_record
from evenkeel.versions import FIRST

__all__ = ["USERS_CHOOSE", "DesiredTable", "desired_table", "table_key"]

USERS_CHOOSE = ("SemiAuto", "Customized")
"""The modes in which PartitionAssignments say where replicas go."""


class DesiredTable(msgspec.Struct, frozen=True, kw_only=True):
    """What the user wants of a table, and how it is to be placed."""

    record: TableRecord
    view: TableView
    mode: str = "FullAuto"
    class_name: str | None = None
    max_concurrent: int | None = None
    """Most partitions whose peers change at the same time; None is unlimited."""
    choices: dict[int, Choice] = {}
    """The users' PartitionAssignments, for SemiAuto and Customized."""
    manual: bool = False
    """Whether a plan waits for its approval (`approval: Manual`); a table's first does not."""
    approvals: dict[int, str] = {}
    """By plan number, the hash that somebody approved."""
    owner: str = ""
    """The key of the Table itself, which is not that of its data where it was restored."""
    newest_plan: int = 0
    """The newest plan that the table's status and its RebalancePlans tell of; 0 for a table that never was."""

    def basis(self) -> bytes:
        """All of the wish that a plan rests on."""
        record = msgspec.structs.replace(self.record, state=TableState.READY)
        return encode((record, self.mode, self.class_name, sorted(self.choices.items())))

    def approves(self, number: int, digest: str) -> bool:
        """Whether the plan may be carried out."""
        return not self.manual or self.approvals.get(number) == digest


def table_key(table: Table) -> str:
    """`<name>.<uid>`: a table that is dropped and created again never meets old data."""
    return f"{table.metadata.name}.{table.metadata.uid}"


def desired_table(
    table: Table,
    assignments: Iterable[PartitionAssignment] = (),
    plans: Iterable[RebalancePlan] = (),
    *,
    version: int = FIRST,
) -> DesiredTable:
    """What the user wants of the table; `assignments` and `plans` are the table's own, `version` is the cluster's."""
    spec = table.spec
    limit = spec.movement.bytes_per_second
    return DesiredTable(
        record=TableRecord(
            partitions=spec.partitions,
            replicas=spec.replicas,
            consensus_size=spec.voters,
            retarget=Retarget(spec.movement.retarget),
            bytes_per_second=limit.units if limit is not None else None,
            spec=spec_for_record(spec, version=version),
        ),
        view=table.view(),
        mode=spec.rebalancer.mode,
        class_name=spec.rebalancer.class_name,
        max_concurrent=spec.movement.max_concurrent,
        choices=choices(assignments) if spec.rebalancer.mode in USERS_CHOOSE else {},
        manual=spec.approval == "Manual",
        owner=table_key(table),
        newest_plan=max(
            [table.status.plan if table.status is not None else 0, *(plan.spec.number or 0 for plan in plans)]
        ),
        approvals={
            plan.spec.number: plan.spec.approved_hash
            for plan in plans
            if plan.spec.number is not None and plan.spec.approved_hash is not None
        },
    )
