"""The desired state of a table, resolved from the resources that users write."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from evenkeel.model.partitionassignment import PartitionAssignment, choices
from evenkeel.model.rebalanceplan import RebalancePlan
from evenkeel.model.table import Table, TableSpec
from evenkeel.model.views import Choice, TableView
from evenkeel.protocol.records import Retarget, TableRecord, TableState, encode
from evenkeel.versions import FIRST, Feature, supports

__all__ = ["USERS_CHOOSE", "DesiredTable", "desired_table", "spec_for_record", "table_key"]

USERS_CHOOSE = ("SemiAuto", "Customized")
"""The modes in which PartitionAssignments place replicas."""


class DesiredTable(msgspec.Struct, frozen=True, kw_only=True):
    """What a user asks of a table, and how to place it."""

    record: TableRecord
    view: TableView
    mode: str = "FullAuto"
    class_name: str | None = None
    max_concurrent: int | None = None
    """The most partitions whose peers change at the same time; None is unlimited."""
    choices: dict[int, Choice] = {}
    """The users' PartitionAssignments, for SemiAuto and Customized."""
    manual: bool = False
    """Whether plans need approval (`approval: Manual`); a table's first plan does not."""
    approvals: dict[int, str] = {}
    """By plan number, the approved hash."""
    owner: str = ""
    """The key made of the Table's own uid; the key of its data differs if the table was restored."""
    newest_plan: int = 0
    """The newest plan in the table's status and RebalancePlans; 0 if there was none."""

    def basis(self) -> bytes:
        """Return everything in the desired state that a plan depends on."""
        record = msgspec.structs.replace(self.record, state=TableState.READY)
        return encode((record, self.mode, self.class_name, sorted(self.choices.items())))

    def approves(self, number: int, digest: str) -> bool:
        """Whether a plan may be carried out."""
        return not self.manual or self.approvals.get(number) == digest


def table_key(table: Table) -> str:
    """Return `<name>.<uid>`; the uid keeps a table that is created again apart from old data."""
    return f"{table.metadata.name}.{table.metadata.uid}"


def desired_table(
    table: Table,
    assignments: Iterable[PartitionAssignment] = (),
    plans: Iterable[RebalancePlan] = (),
    *,
    version: int = FIRST,
) -> DesiredTable:
    """Resolve a table's desired state from its own resources; `version` is the cluster version."""
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


# The spec in the table's record

_Fields = Mapping[str, "_Fields | None"]
"""Names of fields, and the fields in each; None for a field of any content."""
_COLUMN: Final[_Fields] = dict.fromkeys(("comment", "default", "name", "nullable", "type"))
_FIRST_RELEASE: Final[_Fields] = {
    **dict.fromkeys(("approval", "consensusSize", "partitions", "paused", "replicas", "storeCluster")),
    "changes": dict.fromkeys(("enabled", "retention")),
    "movement": dict.fromkeys(("bytesPerSecond", "lostAfter", "maxConcurrent", "retarget")),
    "placement": dict.fromkeys(("maxPerStore", "storeSelector", "zoneSpread")),
    "rebalancer": dict.fromkeys(("class", "config", "mode")),
    "schema": {"columns": _COLUMN, "partitionBy": None, "primaryKey": None},
}
"""The fields that stores of every release can read."""


def spec_for_record(spec: TableSpec, *, version: int) -> msgspec.Raw:
    """Return the spec as stores of this cluster version can read it.

    Stores of the first release read the spec strictly: an unknown field makes the table unreadable. So newer fields are
    written only from the cluster version that supports them, and only if a user set them: a default would change every
    table's record, and with it the basis of its plan.
    """
    everything = spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    chosen = spec.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_defaults=True)
    readable = _readable(everything, chosen if supports(version, Feature.TABLE_FIELDS) else {}, _FIRST_RELEASE)
    return msgspec.Raw(msgspec.json.encode(readable))


def _readable(value: Any, chosen: Any, known: _Fields | None) -> Any:
    """Return the known fields, and those of the others that are in `chosen`."""
    if known is None:
        return value
    if isinstance(value, list):
        picked = chosen if isinstance(chosen, list) and len(chosen) == len(value) else [{}] * len(value)
        return [_readable(each, of_it, known) for each, of_it in zip(value, picked, strict=True)]
    if not isinstance(value, dict):
        return value
    of_it = chosen if isinstance(chosen, dict) else {}
    return {
        name: _readable(field, of_it.get(name), known[name]) if name in known else field
        for name, field in value.items()
        if name in known or name in of_it
    }
