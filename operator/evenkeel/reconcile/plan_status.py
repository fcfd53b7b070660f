"""Plans as objects: what a RebalancePlan shows of a plan in the metastore, or of one that was only imagined.

The totals and moves of a plan are told once, when its object is first seen: they are what it was when it was made,
and what an approval refers to. Its state and its progress follow the metastore.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from math import ceil

from evenkeel.model.base import ObjectMeta
from evenkeel.model.conditions import Condition, Reason, condition, merge_conditions
from evenkeel.model.rebalanceplan import (
    PlannedMove,
    PlanTotals,
    RebalancePlan,
    RebalancePlanSpec,
    RebalancePlanStatus,
)
from evenkeel.model.storecluster import StoreCluster
from evenkeel.model.table import Table
from evenkeel.model.views import Move
from evenkeel.protocol.plan import Plan
from evenkeel.protocol.records import PlanState, StoreLoad
from evenkeel.reconcile.moves import moves_of
from evenkeel.reconcile.partitions import Trouble
from evenkeel.reconcile.planning import Preview
from evenkeel.reconcile.snapshot import TableSnapshot
from evenkeel.reconcile.status import plan_progress

__all__ = [
    "KEPT_PLANS",
    "TABLE_LABEL",
    "dry_run_status",
    "failed_plan_status",
    "idle_plan_status",
    "owned_metadata",
    "partition_bytes",
    "plan_name",
    "plan_object",
    "plan_status",
    "plan_totals",
]

KEPT_PLANS = 5
"""Plans of a table that are kept as objects; the metastore keeps a few more, for `explain`."""
TABLE_LABEL = "evenkeel.dev/table"
"""On what is made for a table: its name."""
_MOVES_SHOWN = 100
_LONGEST_REASON = 256


def plan_name(table: str, number: int) -> str:
    """Name of the RebalancePlan that stands for a plan."""
    return f"{table}-{number}"


def owned_metadata(table: Table, name: str) -> ObjectMeta:
    """The metadata of something that is made for a table."""
    labels = {TABLE_LABEL: table.metadata.name}
    return ObjectMeta(name=name, namespace=table.metadata.namespace, labels=labels)


def plan_object(table: Table, plan: Plan) -> RebalancePlan:
    """The object that stands for a plan."""
    name = table.metadata.name
    return RebalancePlan(
        metadata=owned_metadata(table, plan_name(name, plan.n)),
        spec=RebalancePlanSpec(table=name, number=plan.n),
    )


# What a plan costs


def partition_bytes(loads: Mapping[str, StoreLoad], table: str) -> dict[int, int]:
    """The size of each partition, as far as its leader reports one."""
    groups = (group for load in loads.values() for group in load.tables.get(table, ()))
    return {group.partition: group.log_bytes for group in groups if group.leading}


def plan_totals(
    plan: Plan, moves: Sequence[Move], sizes: Mapping[int, int], *, table: Table, cluster: StoreCluster | None
) -> PlanTotals:
    """The plan in numbers: what is to be copied, and how long that takes at the throttles there are."""
    counts = plan.head.counts
    coming: Counter[str] = Counter()
    for move in moves:
        if move.target is not None:
            coming[move.target] += sizes.get(move.partition, 0)
    all_of_them = counts.moves / len(moves) if counts is not None and moves else 1
    total = ceil(sum(coming.values()) * all_of_them)
    limits = (table.spec.movement.bytes_per_second, cluster.spec.throttles.bytes_per_second if cluster else None)
    rates = [limit.units for limit in limits if limit is not None and limit.units]
    slowest = max(coming.values(), default=0) * all_of_them / min(rates) if rates else 0
    return PlanTotals(
        partitions=counts.partitions if counts is not None else len({move.partition for move in moves}),
        moves=counts.moves if counts is not None else len(moves),
        leader_moves=counts.leaders if counts is not None else 0,
        bytes=total,
        seconds=ceil(slowest),
    )


def _shown(moves: Iterable[Move], sizes: Mapping[int, int]) -> tuple[PlannedMove, ...]:
    return tuple(
        PlannedMove(
            partition=move.partition,
            source=move.source or "",
            target=move.target or "",
            bytes=sizes.get(move.partition, 0) if move.target is not None else 0,
            reason=move.reason[:_LONGEST_REASON],
        ).lean()
        for move in islice(moves, _MOVES_SHOWN)
    )


# Plans in the metastore


def plan_status(
    found: RebalancePlan,
    snapshot: TableSnapshot,
    *,
    table: Table,
    cluster: StoreCluster | None,
    loads: Mapping[str, StoreLoad],
    now: str,
) -> RebalancePlanStatus:
    """What is true of a numbered plan at the moment `now`."""
    newest, number = snapshot.plan, found.spec.number
    assert number is not None
    before = found.status or RebalancePlanStatus()
    generation = found.metadata.generation
    if newest is None or number > newest.n:
        newest_words = f"the newest is {newest.n}" if newest is not None else "there is none yet"
        trouble = Trouble(
            Reason.SPEC_INVALID, f"spec.number: got {number}; allowed: a plan that was made, {newest_words}"
        )
        return failed_plan_status(found, trouble, now=now)
    if number < newest.n:
        over = before.state if before.state in ("Done", "Failed") else "Superseded"
        return before.model_copy(update={"observed_generation": generation, "state": over})
    if before.hash != newest.head.hash:
        before = _introduced(newest, before, sizes=partition_bytes(loads, snapshot.table), table=table, cluster=cluster)
    progress = plan_progress(snapshot, before.progress, now=now)
    return before.model_copy(
        update={
            "observed_generation": generation,
            "conditions": merge_conditions(before.conditions, [_approval(found, newest, now=now)]),
            "state": _state(newest, done=progress is not None and progress.percentage == 100),
            "progress": progress,
        }
    )


def _introduced(
    plan: Plan,
    before: RebalancePlanStatus,
    *,
    sizes: Mapping[int, int],
    table: Table,
    cluster: StoreCluster | None,
) -> RebalancePlanStatus:
    moves = list(moves_of(plan))
    return RebalancePlanStatus(
        conditions=before.conditions,
        hash=plan.head.hash,
        totals=plan_totals(plan, moves, sizes, table=table, cluster=cluster),
        moves=_shown(moves, sizes),
    )


def _state(plan: Plan, *, done: bool) -> str:
    if plan.head.state is PlanState.AWAITING_APPROVAL:
        return "AwaitingApproval"
    return "Done" if done else "Running"


def _approval(found: RebalancePlan, plan: Plan, *, now: str) -> Condition:
    """Whether the plan may begin."""
    generation, given, name = found.metadata.generation, found.spec.approved_hash, found.metadata.name
    digest = plan.head.hash
    if given is not None and given != digest:
        words = f"spec.approvedHash: got {given}; allowed: {digest}, the hash of this plan"
        return condition("Approved", False, Reason.SPEC_INVALID, words, now=now, generation=generation)
    if plan.head.state is PlanState.AWAITING_APPROVAL:
        words = f"approve it with `evenkeel approve plan/{name}`, or set spec.approvedHash to {digest}"
        return condition("Approved", False, Reason.AWAITING_APPROVAL, words, now=now, generation=generation)
    reason, words = (Reason.APPROVED, "") if given is not None else (Reason.AS_EXPECTED, "no approval is needed")
    return condition("Approved", True, reason, words, now=now, generation=generation)


# Plans that were only imagined


def dry_run_status(
    found: RebalancePlan,
    preview: Preview,
    *,
    table: Table,
    cluster: StoreCluster | None,
    sizes: Mapping[int, int],
    now: str,
) -> RebalancePlanStatus:
    """What would happen."""
    return RebalancePlanStatus(
        observed_generation=found.metadata.generation,
        conditions=_judged(found, True, Reason.AS_EXPECTED, "nothing is changed", now=now),
        state="DryRun",
        hash=preview.plan.head.hash,
        totals=plan_totals(preview.plan, preview.moves, sizes, table=table, cluster=cluster),
        moves=_shown(preview.moves, sizes),
    )


def failed_plan_status(found: RebalancePlan, trouble: Trouble, *, now: str) -> RebalancePlanStatus:
    """Why there is no plan."""
    return RebalancePlanStatus(
        observed_generation=found.metadata.generation,
        conditions=_judged(found, False, trouble.reason, trouble.message, now=now),
        state="Failed",
    )


def idle_plan_status(found: RebalancePlan, *, now: str) -> RebalancePlanStatus:
    """There is nothing to plan for; not the last word on it, for a table may yet come."""
    words = f"there is no Table {found.spec.table}; create it, or delete this RebalancePlan"
    return RebalancePlanStatus(conditions=_judged(found, False, Reason.TABLE_MISSING, words, now=now))


def _judged(found: RebalancePlan, accepted: bool, reason: Reason, message: str, *, now: str) -> tuple[Condition, ...]:
    """Its conditions, with whether what it asks for can be told."""
    told = condition("Accepted", accepted, reason, message, now=now, generation=found.metadata.generation)
    return merge_conditions(found.status.conditions if found.status is not None else (), [told])
