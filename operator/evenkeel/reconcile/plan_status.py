"""The status of RebalancePlans: of plans in the metastore, and of dry runs; for Ready see `readiness`.

A plan's totals and moves are written once, when its object is first seen: they describe the plan as it was made, which
an approval refers to. Bytes and seconds are added later if sizes were unknown then, but not after the plan is carried
out, because sizes have changed. State and progress follow the metastore.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from math import ceil
from statistics import median
from typing import NamedTuple

from evenkeel.model.conditions import (
    Condition,
    ConditionType,
    Reason,
    condition,
    merge_conditions,
    with_kstatus,
)
from evenkeel.model.rebalanceplan import (
    PlannedMove,
    PlanTotals,
    RebalancePlan,
    RebalancePlanSpec,
    RebalancePlanStatus,
)
from evenkeel.model.resource_base import ObjectMeta
from evenkeel.model.storecluster import StoreCluster
from evenkeel.model.table import Table
from evenkeel.model.views import Move
from evenkeel.protocol.records import PlanState
from evenkeel.protocol.stored_plan import Plan
from evenkeel.reconcile.plan_moves import moves_of
from evenkeel.reconcile.planning import Preview
from evenkeel.reconcile.readiness import Problem, ended_plan_ready, is_complete, plan_ready
from evenkeel.reconcile.table_snapshot import TableSnapshot
from evenkeel.reconcile.table_status import Copies, plan_progress

__all__ = [
    "KEPT_PLANS",
    "TABLE_LABEL",
    "CopyCosts",
    "dry_run_status",
    "failed_plan_status",
    "orphan_plan_status",
    "owned_metadata",
    "plan_name",
    "plan_object",
    "plan_status",
    "plan_totals",
]

KEPT_PLANS = 5
"""How many RebalancePlans of a table are kept; the metastore keeps a few more plans, for `explain`."""
TABLE_LABEL = "evenkeel.dev/table"
"""On objects that belong to a table: its name."""
_MOVES_SHOWN = 100
_LONGEST_REASON = 256


def plan_name(table: str, number: int) -> str:
    """Return the name of a plan's RebalancePlan."""
    return f"{table}-{number}"


def owned_metadata(table: Table, name: str) -> ObjectMeta:
    """Return the metadata of an object that belongs to a table."""
    labels = {TABLE_LABEL: table.metadata.name}
    return ObjectMeta(name=name, namespace=table.metadata.namespace, labels=labels)


def plan_object(table: Table, plan: Plan) -> RebalancePlan:
    """Return a plan's RebalancePlan."""
    name = table.metadata.name
    return RebalancePlan(
        metadata=owned_metadata(table, plan_name(name, plan.n)),
        spec=RebalancePlanSpec(table=name, number=plan.n),
    )


# Costs


class CopyCosts(NamedTuple):
    """Sizes and copy rates, as far as stores report them."""

    sizes: Mapping[int, int]
    """By partition of the table, the bytes of its data."""
    rates: Mapping[str, int]
    """By store, the bytes per second of the last copies to it."""

    def rate(self, store: str, limit: float | None) -> float | None:
        """Return the expected bytes per second, at most `limit`; None if unknown."""
        measured = self.rates.get(store) or (median(self.rates.values()) if self.rates else None)
        return min(filter(None, (measured, limit)), default=None)


def plan_totals(
    plan: Plan, moves: Sequence[Move], costs: CopyCosts, *, table: Table, cluster: StoreCluster | None
) -> PlanTotals:
    """Return how much a plan moves and copies, and how long that is expected to take."""
    counts = plan.head.counts
    coming: Counter[str] = Counter()
    known = True
    for move in moves:
        if move.target is not None:
            coming[move.target] += costs.sizes.get(move.partition, 0)
            known = known and move.partition in costs.sizes
    all_of_them = counts.moves / len(moves) if counts is not None and moves else 1
    limits = (table.spec.movement.bytes_per_second, cluster.spec.throttles.bytes_per_second if cluster else None)
    limit = min((limit.units for limit in limits if limit is not None and limit.units), default=None)
    return PlanTotals(
        partitions=counts.partitions if counts is not None else len({move.partition for move in moves}),
        moves=counts.moves if counts is not None else len(moves),
        leader_moves=counts.leaders if counts is not None else 0,
        bytes=ceil(sum(coming.values()) * all_of_them) if known else None,
        seconds=_seconds(coming, all_of_them, costs, limit) if known else None,
    )


def _seconds(coming: Mapping[str, int], all_of_them: float, costs: CopyCosts, limit: float | None) -> int | None:
    """Return how long the slowest store takes to receive its copies; None if no rate is known."""
    slowest = 0.0
    for store, size in coming.items():
        rate = costs.rate(store, limit)
        if rate is None:
            return None
        slowest = max(slowest, size * all_of_them / rate)
    return ceil(slowest)


def _shown(moves: Iterable[Move], sizes: Mapping[int, int]) -> tuple[PlannedMove, ...]:
    return tuple(
        PlannedMove(
            partition=move.partition,
            source=move.source or "",
            target=move.target or "",
            bytes=sizes.get(move.partition) if move.target is not None else 0,
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
    costs: CopyCosts,
    filling: Mapping[int, Mapping[str, float]],
    now: str,
) -> RebalancePlanStatus:
    """Return a numbered plan's status; `filling` is, by partition and store, how much of a copy (0 to 1) exists."""
    newest, number = snapshot.plan, found.spec.number
    assert number is not None
    before = found.status or RebalancePlanStatus()
    generation = found.metadata.generation
    if newest is None or number > newest.n:
        existing = f"the newest is {newest.n}" if newest is not None else "there is none yet"
        message = f"spec.number: got {number}; allowed: the number of an existing plan, {existing}"
        problem = Problem(Reason.SPEC_INVALID, message)
        return failed_plan_status(found, problem, now=now)
    if number < newest.n:
        over = before.state if before.state in ("Done", "Failed") else "Superseded"
        conditions = before.conditions if over == "Failed" else _ended(found, over, now=now)
        return before.model_copy(update={"observed_generation": generation, "state": over, "conditions": conditions})
    known = before if before.hash == newest.head.hash else RebalancePlanStatus(conditions=before.conditions)
    progress = plan_progress(snapshot, known.progress, copies=Copies(costs.sizes, filling), now=now)
    if not known.hash or (known.totals.bytes is None and not is_complete(progress)):
        known = _with_totals(newest, known, costs=costs, table=table, cluster=cluster)
    approval = _approval(found, newest, now=now)
    ready = condition("Ready", *plan_ready(approval, progress), now=now, generation=generation)
    return known.model_copy(
        update={
            "observed_generation": generation,
            "conditions": with_kstatus(merge_conditions(known.conditions, [ready, approval]), now=now),
            "state": _state(newest, done=is_complete(progress)),
            "progress": progress,
        }
    )


def _ended(found: RebalancePlan, state: str, *, now: str) -> tuple[Condition, ...]:
    """Return the conditions of a plan that a newer one has followed."""
    before = found.status.conditions if found.status is not None else ()
    ready = condition("Ready", *ended_plan_ready(state), now=now, generation=found.metadata.generation)
    return with_kstatus(merge_conditions(before, [ready]), now=now)


def _with_totals(
    plan: Plan,
    before: RebalancePlanStatus,
    *,
    costs: CopyCosts,
    table: Table,
    cluster: StoreCluster | None,
) -> RebalancePlanStatus:
    """Return the status with the plan's totals and moves; unchanged if it has them and sizes are still unknown."""
    moves = list(moves_of(plan))
    totals = plan_totals(plan, moves, costs, table=table, cluster=cluster)
    if before.hash and totals.bytes is None:
        return before
    return before.model_copy(update={"hash": plan.head.hash, "totals": totals, "moves": _shown(moves, costs.sizes)})


def _state(plan: Plan, *, done: bool) -> str:
    if plan.head.state is PlanState.AWAITING_APPROVAL:
        return "AwaitingApproval"
    return "Done" if done else "Running"


def _approval(found: RebalancePlan, plan: Plan, *, now: str) -> Condition:
    """Return the condition Approved: whether the plan may begin."""
    generation, given, name = found.metadata.generation, found.spec.approved_hash, found.metadata.name
    digest = plan.head.hash
    if given is not None and given != digest:
        message = f"spec.approvedHash: got {given}; allowed: {digest}, the hash of this plan"
        return condition("Approved", False, Reason.SPEC_INVALID, message, now=now, generation=generation)
    if plan.head.state is PlanState.AWAITING_APPROVAL:
        message = f"approve it with `evenkeel approve plan/{name}`, or set spec.approvedHash to {digest}"
        return condition("Approved", False, Reason.AWAITING_APPROVAL, message, now=now, generation=generation)
    reason, message = (Reason.APPROVED, "") if given is not None else (Reason.AS_EXPECTED, "no approval is needed")
    return condition("Approved", True, reason, message, now=now, generation=generation)


# Dry runs and plans that cannot be made


def dry_run_status(
    found: RebalancePlan,
    preview: Preview,
    *,
    table: Table,
    cluster: StoreCluster | None,
    costs: CopyCosts,
    now: str,
) -> RebalancePlanStatus:
    """Return the status of a dry run: what the plan would do."""
    return RebalancePlanStatus(
        observed_generation=found.metadata.generation,
        conditions=_accepted(found, True, Reason.AS_EXPECTED, "dry run; nothing is changed", now=now),
        state="DryRun",
        hash=preview.plan.head.hash,
        totals=plan_totals(preview.plan, preview.moves, costs, table=table, cluster=cluster),
        moves=_shown(preview.moves, costs.sizes),
    )


def failed_plan_status(found: RebalancePlan, problem: Problem, *, now: str) -> RebalancePlanStatus:
    """Return the status of a RebalancePlan for which no plan can be made."""
    return RebalancePlanStatus(
        observed_generation=found.metadata.generation,
        conditions=_accepted(found, False, problem.reason, problem.message, now=now),
        state="Failed",
    )


def orphan_plan_status(found: RebalancePlan, *, now: str) -> RebalancePlanStatus:
    """Return the status of a RebalancePlan whose Table does not exist; it is not final, as the Table may be created."""
    message = f"Table {found.spec.table} does not exist; create it, or delete this RebalancePlan"
    return RebalancePlanStatus(conditions=_accepted(found, False, Reason.TABLE_MISSING, message, now=now))


def _accepted(found: RebalancePlan, accepted: bool, reason: Reason, message: str, *, now: str) -> tuple[Condition, ...]:
    """Return the conditions with Ready and Accepted: whether the request can be answered."""
    generation, before = found.metadata.generation, found.status.conditions if found.status is not None else ()
    kinds: tuple[ConditionType, ...] = ("Ready", "Accepted")
    changed = [condition(kind, accepted, reason, message, now=now, generation=generation) for kind in kinds]
    return with_kstatus(merge_conditions(before, changed), now=now)
