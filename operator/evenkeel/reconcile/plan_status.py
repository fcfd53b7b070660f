"""Plans as objects: what a RebalancePlan shows of a plan in the metastore, or of one that was only imagined.

The totals and moves of a plan are told once, when its object is first seen: they are what it was when it was made,
and what an approval refers to. Bytes and seconds are added later where sizes were not known then, but not once the plan
is carried out: partitions have other sizes by then. Its state and its progress follow the metastore.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from math import ceil
from statistics import median
from typing import NamedTuple

from evenkeel.model.base import ObjectMeta
from evenkeel.model.conditions import (
    Condition,
    ConditionType,
    Progress,
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
from evenkeel.model.storecluster import StoreCluster
from evenkeel.model.table import Table
from evenkeel.model.views import Move
from evenkeel.protocol.records import PlanState
from evenkeel.protocol.stored_plan import Plan
from evenkeel.reconcile.partition_status import Problem
from evenkeel.reconcile.plan_moves import moves_of
from evenkeel.reconcile.planning import Preview
from evenkeel.reconcile.table_snapshot import TableSnapshot
from evenkeel.reconcile.table_status import Copies, plan_progress

__all__ = [
    "KEPT_PLANS",
    "TABLE_LABEL",
    "CopyCosts",
    "dry_run_status",
    "failed_plan_status",
    "idle_plan_status",
    "owned_metadata",
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


class CopyCosts(NamedTuple):
    """What copying costs, as far as stores report it."""

    sizes: Mapping[int, int]
    """By partition of the table, the bytes of its data."""
    rates: Mapping[str, int]
    """By store, the bytes per second that were last copied to it."""

    def rate(self, store: str, limit: float | None) -> float | None:
        """Bytes per second that can be expected, under a limit; None where nothing is known."""
        measured = self.rates.get(store) or (median(self.rates.values()) if self.rates else None)
        return min(filter(None, (measured, limit)), default=None)


def plan_totals(
    plan: Plan, moves: Sequence[Move], costs: CopyCosts, *, table: Table, cluster: StoreCluster | None
) -> PlanTotals:
    """The plan in numbers: what is to be copied, and how long that takes as stores copy."""
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
    """How long the store takes that has most to receive; None where no rate is known."""
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
    """What is true of a numbered plan at the moment `now`; `filling` is how far copies of partitions are, by store."""
    newest, number = snapshot.plan, found.spec.number
    assert number is not None
    before = found.status or RebalancePlanStatus()
    generation = found.metadata.generation
    if newest is None or number > newest.n:
        newest_words = f"the newest is {newest.n}" if newest is not None else "there is none yet"
        problem = Problem(
            Reason.SPEC_INVALID, f"spec.number: got {number}; allowed: a plan that was made, {newest_words}"
        )
        return failed_plan_status(found, problem, now=now)
    if number < newest.n:
        over = before.state if before.state in ("Done", "Failed") else "Superseded"
        conditions = before.conditions if over == "Failed" else _ended(found, over, now=now)
        return before.model_copy(update={"observed_generation": generation, "state": over, "conditions": conditions})
    known = before if before.hash == newest.head.hash else RebalancePlanStatus(conditions=before.conditions)
    progress = plan_progress(snapshot, known.progress, copies=Copies(costs.sizes, filling), now=now)
    if not known.hash or (known.totals.bytes is None and not _is_done(progress)):
        known = _introduced(newest, known, costs=costs, table=table, cluster=cluster)
    approval = _approval(found, newest, now=now)
    told = merge_conditions(known.conditions, [_plan_ready(found, approval, progress, now=now), approval])
    return known.model_copy(
        update={
            "observed_generation": generation,
            "conditions": with_kstatus(told, now=now),
            "state": _state(newest, done=_is_done(progress)),
            "progress": progress,
        }
    )


def _is_done(progress: Progress | None) -> bool:
    return progress is not None and progress.percentage == 100


def _plan_ready(found: RebalancePlan, approval: Condition, progress: Progress | None, *, now: str) -> Condition:
    """Whether the plan is carried out."""
    generation = found.metadata.generation
    if approval.status != "True":
        return condition("Ready", False, Reason(approval.reason), approval.message, now=now, generation=generation)
    if not _is_done(progress):
        done, total = (progress.moves_done, progress.moves_total) if progress is not None else (0, 0)
        words = f"{done} of {total} partitions are where the plan wants them"
        return condition("Ready", False, Reason.REBALANCING, words, now=now, generation=generation)
    return condition("Ready", True, Reason.AS_EXPECTED, "the plan is carried out", now=now, generation=generation)


def _ended(found: RebalancePlan, state: str, *, now: str) -> tuple[Condition, ...]:
    """The conditions of a plan that a newer one has followed: nothing more is to be done for it."""
    reason, words = (
        (Reason.AS_EXPECTED, "the plan is carried out")
        if state == "Done"
        else (Reason.SUPERSEDED, "a newer plan has taken its place")
    )
    before = found.status.conditions if found.status is not None else ()
    ready = condition("Ready", True, reason, words, now=now, generation=found.metadata.generation)
    return with_kstatus(merge_conditions(before, [ready]), now=now)


def _introduced(
    plan: Plan,
    before: RebalancePlanStatus,
    *,
    costs: CopyCosts,
    table: Table,
    cluster: StoreCluster | None,
) -> RebalancePlanStatus:
    """The status with what the plan is; as it was where that was told, and the sizes are still not known."""
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
    costs: CopyCosts,
    now: str,
) -> RebalancePlanStatus:
    """What would happen."""
    return RebalancePlanStatus(
        observed_generation=found.metadata.generation,
        conditions=_judged(found, True, Reason.AS_EXPECTED, "nothing is changed", now=now),
        state="DryRun",
        hash=preview.plan.head.hash,
        totals=plan_totals(preview.plan, preview.moves, costs, table=table, cluster=cluster),
        moves=_shown(preview.moves, costs.sizes),
    )


def failed_plan_status(found: RebalancePlan, problem: Problem, *, now: str) -> RebalancePlanStatus:
    """Why there is no plan."""
    return RebalancePlanStatus(
        observed_generation=found.metadata.generation,
        conditions=_judged(found, False, problem.reason, problem.message, now=now),
        state="Failed",
    )


def idle_plan_status(found: RebalancePlan, *, now: str) -> RebalancePlanStatus:
    """There is nothing to plan for; not the last word on it, for a table may yet come."""
    words = f"there is no Table {found.spec.table}; create it, or delete this RebalancePlan"
    return RebalancePlanStatus(conditions=_judged(found, False, Reason.TABLE_MISSING, words, now=now))


def _judged(found: RebalancePlan, accepted: bool, reason: Reason, message: str, *, now: str) -> tuple[Condition, ...]:
    """Its conditions, with whether what it asks for can be told."""
    generation, before = found.metadata.generation, found.status.conditions if found.status is not None else ()
    kinds: tuple[ConditionType, ...] = ("Ready", "Accepted")
    told = [condition(kind, accepted, reason, message, now=now, generation=generation) for kind in kinds]
    return with_kstatus(merge_conditions(before, told), now=now)
