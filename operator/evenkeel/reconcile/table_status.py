"""A Table's status, derived from the metastore, the stores' reports and the outcome of the reconciliation.

    Ready         the spec is applied, and every partition can be read and written; see `readiness`
    Available     every partition can be read and written, whether or not the newest spec is applied
    Progressing   replicas are moving, or are about to
    Balanced      every replica is where the newest spec places it
    Degraded      what is wrong: unavailable partitions, a spec that cannot be applied, lost stores, damaged replicas,
                  partitions that make no progress
    Reconciling, Stalled   for kstatus; derived from the others

A condition keeps its transition time while its status stays the same, so `now` is used only for changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from pydantic import ValidationError

from evenkeel.model.conditions import (
    Condition,
    ConditionType,
    Progress,
    Reason,
    condition,
    merge_conditions,
    projected,
    unless_past,
    with_kstatus,
)
from evenkeel.model.partitionassignment import PartitionStatus
from evenkeel.model.table import StuckPartition, Table, TableSpec, TableStatus
from evenkeel.protocol.partition_view import PartitionView
from evenkeel.protocol.records import PlanState, StoreLoad, TableRecord, TableState, shape
from evenkeel.protocol.stored_plan import Plan
from evenkeel.reconcile.outages import OUTAGES, Outage, outages_of
from evenkeel.reconcile.partition_sizes import total_size
from evenkeel.reconcile.partition_status import copy_progress_of, damages_of, problems_of
from evenkeel.reconcile.readiness import Problem, Verdict, degraded, table_ready, table_ready_unreadable
from evenkeel.reconcile.table_snapshot import TableSnapshot

__all__ = ["Copies", "plan_progress", "problem_status", "table_status"]

_BEING_CREATED = "the table is being created"
_STUCK_SHOWN = 20
_STORES_SHOWN = 5
_SMALL_CHANGE = 4
"""The size in a status is updated when it has changed by more than a quarter."""


class _Facts(NamedTuple):
    """The inputs of the conditions."""

    status: TableStatus
    created: bool
    awaiting: bool
    paused: str
    """Why the table is paused; empty if it is not."""
    outages: tuple[Outage, ...]
    """Of the unavailable partitions, except those that wait for their first leader."""
    lost: tuple[str, ...]
    """Stores that hold replicas and are not registered."""
    problems: Mapping[int, str]
    damages: Mapping[int, str]
    """The problems that are damaged rows."""
    problem: Problem | None
    generation: int
    unapplied: bool
    """Whether the spec was changed while the table is paused."""

    @property
    def unfinished(self) -> bool:
        """Whether some partitions have not reached the newest plan's targets."""
        progress = self.status.progress
        return progress is not None and progress.percentage < 100 and not self.awaiting

    @property
    def moving(self) -> bool:
        return self.status.moving > 0 or (self.unfinished and not self.paused)


def table_status(
    table: Table,
    snapshot: TableSnapshot,
    partitions: list[PartitionStatus],
    *,
    loads: Mapping[str, StoreLoad],
    sizes: Mapping[int, int],
    problem: Problem | None = None,
    paused: str = "",
    now: str,
) -> TableStatus:
    """Return the table's status at the time `now`."""
    before, plan = table.status, snapshot.plan
    damages, outages = damages_of(loads, snapshot.table), _outages(snapshot, partitions, loads, before)
    problems = {**problems_of(loads, snapshot.table), **damages}
    live = set(snapshot.registered)
    status = TableStatus(
        observed_generation=table.metadata.generation,
        partitions=len(partitions),
        replicas=min((len(entry.stable) for entry in partitions), default=0),
        consensus_size=min((_voters(entry) for entry in partitions), default=0),
        moving=sum(bool(entry.pending or entry.planned) for entry in partitions),
        leaderless=sum(not entry.leader for entry in partitions),
        under_replicated=sum(_live(entry, live) < table.spec.replicas for entry in partitions),
        plan=_newest_plan(plan, before),
        plan_hash=plan.head.hash if plan is not None else "",
        progress=_table_progress(
            snapshot, before, copies=Copies(sizes, copy_progress_of(loads, snapshot.table)), now=now
        ),
        stuck=tuple(_stuck(partitions, problems, before, outages=outages, now=now))[:_STUCK_SHOWN],
        bytes=total_size(sizes, range(len(partitions))),
    )
    facts = _Facts(
        status=status,
        created=snapshot.record is not None and snapshot.record.state is TableState.READY,
        awaiting=plan is not None and plan.head.state is PlanState.AWAITING_APPROVAL,
        paused=paused,
        outages=tuple(outages.values()),
        lost=tuple(sorted({peer.store for entry in partitions for peer in entry.stable} - live)),
        problems=problems,
        damages=damages,
        problem=problem,
        generation=table.metadata.generation,
        unapplied=bool(paused) and _unapplied(table, snapshot.record),
    )
    conditions = _conditions(facts, now=now)
    merged = with_kstatus(merge_conditions(before.conditions if before is not None else (), conditions), now=now)
    after = status.model_copy(update={"conditions": merged})
    return before if before is not None and _only_grown(before, after) else after


def _newest_plan(plan: Plan | None, before: TableStatus | None) -> int:
    """Return the number of the newest plan, from the previous status if the metastore has none.

    A metastore that lost its data must not have the table created again; only this number shows that it has data.
    """
    if plan is not None:
        return plan.n
    return before.plan if before is not None else 0


def _only_grown(before: TableStatus, after: TableStatus) -> bool:
    """Whether only the size has changed, and only a little: a table grows with every write."""
    little = after.bytes is not None and before.bytes is not None
    little = little and abs((after.bytes or 0) - (before.bytes or 0)) * _SMALL_CHANGE <= (before.bytes or 0)
    return little and after.model_copy(update={"bytes": before.bytes}) == before


def problem_status(table: Table, problem: Problem, *, now: str) -> TableStatus:
    """Return the previous status with a problem, if the table's keys cannot be read.

    Whether the table is available is unknown then. If the metastore is unreachable, the spec has not been observed.
    """
    before, generation = table.status or TableStatus(), table.metadata.generation
    ready = table_ready_unreadable(problem)
    found: tuple[tuple[ConditionType, bool | None], ...] = (
        ("Ready", ready.holds),
        ("Available", None),
        ("Degraded", True),
    )
    changed = [
        condition(kind, holds, problem.reason, problem.message, now=now, generation=generation) for kind, holds in found
    ]
    conditions = with_kstatus(merge_conditions(before.conditions, changed), now=now)
    observed = before.observed_generation if ready.holds is None else generation
    return before.model_copy(update={"observed_generation": observed, "conditions": conditions})


def _unapplied(table: Table, record: TableRecord | None) -> bool:
    """Whether the metastore's spec differs from the resource's in more than `paused`."""
    if record is None:
        return True
    try:
        applied = TableSpec.model_validate_json(bytes(record.spec))
    except ValidationError:
        return True
    return applied.model_copy(update={"paused": table.spec.paused}) != table.spec


def _outages(
    snapshot: TableSnapshot,
    partitions: list[PartitionStatus],
    loads: Mapping[str, StoreLoad],
    before: TableStatus | None,
) -> dict[int, Outage]:
    """Return, by partition, why it has no leader; a new table's first elections are no outage."""
    found = outages_of(snapshot, (entry.partition for entry in partitions if not entry.leader), loads)
    if _was_available(before):
        return found
    return {partition: outage for partition, outage in found.items() if outage.reason is not Reason.NO_LEADER}


def _was_available(before: TableStatus | None) -> bool:
    """Whether every partition has had a leader before; the first release's statuses have Ready but not Available."""
    conditions = before.conditions if before is not None else ()
    return any(
        entry.type in ("Ready", "Available") and (entry.status != "False" or entry.reason in OUTAGES)
        for entry in conditions
    )


def _live(entry: PartitionStatus, live: set[str]) -> int:
    return sum(peer.store in live for peer in entry.stable)


def _voters(entry: PartitionStatus) -> int:
    return sum(peer.role == "Voter" for peer in entry.stable)


# Progress


def _table_progress(
    snapshot: TableSnapshot, before: TableStatus | None, *, copies: Copies, now: str
) -> Progress | None:
    plan = snapshot.plan
    known = before.progress if before is not None and plan is not None and before.plan == plan.n else None
    return plan_progress(snapshot, known, copies=copies, now=now)


class Copies(NamedTuple):
    """The sizes of a table's partitions and the progress of their copies."""

    sizes: Mapping[int, int]
    """By partition, the bytes of its data."""
    filling: Mapping[int, Mapping[str, float]]
    """By partition, the stores that receive a copy, and how much of it (0 to 1) each has."""

    def left(self, view: PartitionView, plan: Plan, partition: int) -> int:
        """Return how many bytes of a partition the plan still has to copy."""
        size, filling = self.sizes.get(partition, 0), self.filling.get(partition, {})
        stable = view.stable.peers if view.stable is not None else ()
        present = {(peer.store, peer.volume) for peer in stable}
        coming = [peer.store for peer in plan.target(partition) if (peer.store, peer.volume) not in present]
        return round(sum(size * (1.0 - min(1.0, filling.get(store, 0.0))) for store in coming))


def plan_progress(snapshot: TableSnapshot, known: Progress | None, *, copies: Copies, now: str) -> Progress | None:
    """Return how many partitions that the newest plan changes have reached their targets, and how many bytes.

    `known` is the previous progress.
    """
    plan, record = snapshot.plan, snapshot.record
    if plan is None or record is None:
        return None
    away = [p for p in range(record.partitions) if not _arrived(snapshot.partition(p), plan, p)]
    counted = plan.head.counts.partitions if plan.head.counts is not None else record.partitions
    total, left = max(len(away), counted), len(away)
    bytes_left = sum(copies.left(snapshot.partition(p), plan, p) for p in away)
    bytes_total = max(bytes_left, known.bytes_total if known is not None else 0)
    progress = Progress.of(moves=(total - left, total), bytes_=(bytes_total - bytes_left, bytes_total))
    started = known.started_at if known is not None and known.started_at else now
    unchanged = known is not None and _same_progress(known, progress)
    expected = (
        unless_past(known.expected_at, now) if known is not None and unchanged else _expected(progress, started, now)
    )
    return progress.model_copy(update={"started_at": started, "expected_at": expected if left else None})


def _same_progress(one: Progress, other: Progress) -> bool:
    return (one.moves_done, one.bytes_done) == (other.moves_done, other.bytes_done)


def _expected(progress: Progress, started: str, now: str) -> str | None:
    """Return when the plan is done at the rate since its start, in bytes, or in partitions if none are copied."""
    if progress.bytes_done and progress.bytes_done < progress.bytes_total:
        return projected(started, now, done=progress.bytes_done, left=progress.bytes_total - progress.bytes_done)
    if progress.moves_done and progress.bytes_done >= progress.bytes_total:
        return projected(started, now, done=progress.moves_done, left=progress.moves_total - progress.moves_done)
    return None


def _arrived(view: PartitionView, plan: Plan, partition: int) -> bool:
    at_rest = view.pending is None and view.planned is None and view.trigger >= plan.n
    return at_rest and view.stable is not None and shape(view.stable.peers) == shape(plan.target(partition))


def _stuck(
    partitions: list[PartitionStatus],
    problems: Mapping[int, str],
    before: TableStatus | None,
    *,
    outages: Mapping[int, Outage],
    now: str,
) -> Iterator[StuckPartition]:
    known = {entry.partition: entry.since for entry in before.stuck} if before is not None else {}
    for status in partitions:
        outage = outages.get(status.partition)
        reason = problems.get(status.partition) or (outage.cause if outage is not None else "")
        if reason:
            since = known.get(status.partition) or now
            yield StuckPartition(partition=status.partition, stage=status.stage, since=since, reason=reason[:1024])


# Conditions


def _conditions(facts: _Facts, *, now: str) -> list[Condition]:
    available = _available(facts)
    paused = facts.paused if facts.unapplied else ""
    found: tuple[tuple[ConditionType, Verdict], ...] = (
        ("Ready", table_ready(available, generation=facts.generation, problem=facts.problem, paused=paused)),
        ("Available", available),
        ("Progressing", _progressing(facts)),
        ("Balanced", _balanced(facts)),
        ("Degraded", degraded(_problems(facts))),
    )
    return [condition(kind, *verdict, now=now, generation=facts.generation) for kind, verdict in found]


def _available(facts: _Facts) -> Verdict:
    status = facts.status
    if not facts.created:
        if facts.problem is not None:
            return Verdict(False, facts.problem.reason, "the table cannot be created; see condition Degraded")
        reason = Reason.PAUSED if facts.paused else Reason.RECONCILING
        return Verdict(False, reason, facts.paused or _BEING_CREATED)
    if facts.outages:
        worst = next(_unavailable(facts))
        return Verdict(False, worst.reason, worst.message)
    if status.leaderless:
        message = f"{status.leaderless} of {status.partitions} partitions have no leader yet"
        return Verdict(False, Reason.RECONCILING, message)
    return Verdict(True, Reason.AS_EXPECTED, f"{status.partitions} partitions can be read and written")


def _progressing(facts: _Facts) -> Verdict:
    if facts.moving:
        return Verdict(True, Reason.REBALANCING, _progress_message(facts.status))
    if facts.problem is not None:
        return Verdict(False, facts.problem.reason, "the spec cannot be applied; see condition Degraded")
    if facts.paused:
        return Verdict(False, Reason.PAUSED, facts.paused)
    if facts.awaiting:
        return Verdict(
            False, Reason.AWAITING_APPROVAL, f"plan {facts.status.plan} awaits approval; see its RebalancePlan"
        )
    if not facts.created:
        return Verdict(True, Reason.RECONCILING, _BEING_CREATED)
    return Verdict(False, Reason.AS_EXPECTED)


def _balanced(facts: _Facts) -> Verdict:
    if facts.moving or facts.problem is not None or facts.awaiting:
        return _progressing(facts)._replace(holds=False)
    if facts.paused and facts.unfinished:
        return Verdict(False, Reason.PAUSED, f"{facts.paused}; the newest plan is not finished")
    if facts.paused:
        return Verdict(None, Reason.PAUSED, f"{facts.paused}; whether a new plan would move replicas is unknown")
    return Verdict(facts.created, Reason.AS_EXPECTED if facts.created else Reason.RECONCILING)


def _problems(facts: _Facts) -> Iterator[Problem]:
    """Yield what is wrong, the worst first."""
    if facts.created:
        yield from _unavailable(facts)
    if facts.problem is not None:
        yield facts.problem
    if facts.lost:
        named = ", ".join(facts.lost[:_STORES_SHOWN]) + (" ..." if len(facts.lost) > _STORES_SHOWN else "")
        yield Problem(
            Reason.STORES_LOST,
            f"stores that hold replicas are unavailable: {named}; start them again, or wait until their replicas are "
            "replaced after spec.movement.lostAfter",
        )
    if facts.damages:
        partition, damage = next(iter(facts.damages.items()))
        yield Problem(
            Reason.REPLICA_DAMAGED,
            f"{len(facts.damages)} partitions have a replica with damaged or different rows; partition {partition}: "
            f"{damage}; the replica is rebuilt from the others if most of them have the same rows",
        )
    stalled = {partition: problem for partition, problem in facts.problems.items() if partition not in facts.damages}
    if stalled:
        partition, problem = next(iter(stalled.items()))
        yield Problem(
            Reason.CATCH_UP_FAILING, f"{len(stalled)} partitions make no progress; partition {partition}: {problem}"
        )


def _unavailable(facts: _Facts) -> Iterator[Problem]:
    """Yield why partitions are unavailable and what to do about it, the worst first."""
    for reason in OUTAGES:
        alike = [outage for outage in facts.outages if outage.reason is reason]
        if alike:
            stores = sorted({store for outage in alike for store in outage.stores})
            shown = Outage(reason, tuple(stores[:_STORES_SHOWN]))
            counted = f"{len(alike)} of {facts.status.partitions} partitions are unavailable"
            yield Problem(reason, f"{counted}: {shown.cause}; {shown.remedy}")


def _progress_message(status: TableStatus) -> str:
    if status.progress is None:
        return ""
    done, total = status.progress.moves_done, status.progress.moves_total
    return f"plan {status.plan}: {done} of {total} partitions have reached their targets"
