"""A Table's status, folded from what the metastore says; whoever reconciled adds what only it knows.

Conditions keep their times for as long as their status stays the same: `now` shows only where something changed.

    Ready         the spec is accepted, and every partition can be read and written
    Available     every partition can be read and written, whatever becomes of the spec
    Progressing   replicas are on their way, or are about to be
    Balanced      everything is where the newest spec wants it
    Degraded      something is wrong, and says what: without a leader, a spec that cannot be had, stores lost, rows
                  that are damaged or differ
    Reconciling, Stalled   for kstatus; they follow from the others
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
from evenkeel.reconcile.partition_status import Problem, damages_of, fillings_of, problems_of
from evenkeel.reconcile.table_snapshot import TableSnapshot

__all__ = ["Copies", "plan_progress", "problem_status", "table_status"]

_STUCK_SHOWN = 20
_STORES_SHOWN = 5
_LITTLE = 4
"""A size that differs by less than a quarter of what was told is no reason to write a status."""


class _Facts(NamedTuple):
    """What conditions are told from."""

    status: TableStatus
    created: bool
    awaiting: bool
    paused: str
    """Why nothing new is begun; empty where that is not so."""
    outages: tuple[Outage, ...]
    """Of the partitions that cannot be read or written, except where they wait for their first leader."""
    lost: tuple[str, ...]
    """Stores that hold replicas and give no sign of life."""
    problems: Mapping[int, str]
    damages: Mapping[int, str]
    """Those of the problems that are about rows."""
    problem: Problem | None
    generation: int
    unapplied: bool
    """Whether the spec was changed while nothing is carried out."""

    @property
    def unfinished(self) -> bool:
        """Whether the newest plan is still to be carried to some partitions."""
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
    """The table's status at the moment `now`."""
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
        progress=_table_progress(snapshot, before, copies=Copies(sizes, fillings_of(loads, snapshot.table)), now=now),
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
    told = status.model_copy(update={"conditions": merged})
    return before if before is not None and _only_grown(before, told) else told


def _newest_plan(plan: Plan | None, before: TableStatus | None) -> int:
    """The number of the newest plan; the one that was known where the metastore lost it.

    Nothing else tells then that the table has data, and must not be created a second time.
    """
    if plan is not None:
        return plan.n
    return before.plan if before is not None else 0


def _only_grown(before: TableStatus, after: TableStatus) -> bool:
    """Whether nothing is new but a size that has hardly changed: a table that is written to grows all the time."""
    little = after.bytes is not None and before.bytes is not None
    little = little and abs((after.bytes or 0) - (before.bytes or 0)) * _LITTLE <= (before.bytes or 0)
    return little and after.model_copy(update={"bytes": before.bytes}) == before


def problem_status(table: Table, problem: Problem, *, now: str) -> TableStatus:
    """The status of before, with what is wrong: for when what the metastore says cannot be read.

    Whether the table serves is then unknown. It is not Ready where its own keys are the problem. Where the metastore
    does not answer, that is unknown too, and the spec has not been looked at.
    """
    before, generation = table.status or TableStatus(), table.metadata.generation
    unseen = problem.reason is Reason.METASTORE_UNREACHABLE
    ready = None if unseen else False
    told: tuple[tuple[ConditionType, bool | None], ...] = (("Ready", ready), ("Available", None), ("Degraded", True))
    wrong = [
        condition(kind, holds, problem.reason, problem.message, now=now, generation=generation) for kind, holds in told
    ]
    conditions = with_kstatus(merge_conditions(before.conditions, wrong), now=now)
    observed = before.observed_generation if unseen else generation
    return before.model_copy(update={"observed_generation": observed, "conditions": conditions})


def _unapplied(table: Table, record: TableRecord | None) -> bool:
    """Whether the metastore has another spec than the resource, beside the pause itself."""
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
    """By partition, why nobody leads it; nothing where a new table waits for its first elections."""
    found = outages_of(snapshot, (entry.partition for entry in partitions if not entry.leader), loads)
    if _was_available(before):
        return found
    return {partition: outage for partition, outage in found.items() if outage.reason is not Reason.NO_LEADER}


def _was_available(before: TableStatus | None) -> bool:
    """Whether there was a time when every partition had a leader; Ready is of a status without Available."""
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
    """What is known of the copying of a table's partitions."""

    sizes: Mapping[int, int]
    """By partition, the bytes of its data."""
    filling: Mapping[int, Mapping[str, float]]
    """By partition, the stores it is being copied to, and how far (0 to 1) each copy is."""

    def left(self, view: PartitionView, plan: Plan, partition: int) -> int:
        """Bytes of a partition that the plan still has copied."""
        size, filling = self.sizes.get(partition, 0), self.filling.get(partition, {})
        stable = view.stable.peers if view.stable is not None else ()
        present = {(peer.store, peer.volume) for peer in stable}
        coming = [peer.store for peer in plan.target(partition) if (peer.store, peer.volume) not in present]
        return round(sum(size * (1.0 - min(1.0, filling.get(store, 0.0))) for store in coming))


def plan_progress(snapshot: TableSnapshot, known: Progress | None, *, copies: Copies, now: str) -> Progress | None:
    """How many of the partitions that the newest plan changes are where it wants them, and how many bytes.

    `known` is what it was.
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
    as_far = known is not None and _as_far(known, progress)
    expected = (
        unless_past(known.expected_at, now) if known is not None and as_far else _expected(progress, started, now)
    )
    return progress.model_copy(update={"started_at": started, "expected_at": expected if left else None})


def _as_far(one: Progress, other: Progress) -> bool:
    return (one.moves_done, one.bytes_done) == (other.moves_done, other.bytes_done)


def _expected(progress: Progress, started: str, now: str) -> str | None:
    """When all is done at the rate of bytes since the start, or of partitions where nothing is to be copied."""
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
    problems = list(_troubles(facts))
    told = (
        ("Ready", *_ready(facts)),
        ("Available", *_available(facts)),
        ("Progressing", *_progressing(facts)),
        ("Balanced", *_balanced(facts)),
        (
            "Degraded",
            bool(problems),
            problems[0].reason if problems else Reason.AS_EXPECTED,
            "; ".join(problem.message for problem in problems),
        ),
    )
    return [condition(*entry, now=now, generation=facts.generation) for entry in told]  # type: ignore[arg-type]


def _ready(facts: _Facts) -> tuple[bool, Reason, str]:
    """Available, and nothing of the spec is refused or held back."""
    available = _available(facts)
    held_back = f"generation {facts.generation} is not carried out"
    if not available[0]:
        return available
    if facts.problem is not None:
        words = f"{held_back}: {facts.problem.message}; the table is served as it was before"
        return False, facts.problem.reason, words
    if facts.unapplied:
        return False, Reason.PAUSED, f"{held_back}: {facts.paused}; the table is served as it was before"
    return available


def _available(facts: _Facts) -> tuple[bool, Reason, str]:
    status = facts.status
    if not facts.created:
        if facts.problem is not None:
            return False, facts.problem.reason, "the table cannot be created, see Degraded"
        return False, Reason.PAUSED if facts.paused else Reason.RECONCILING, facts.paused or "it is being created"
    if facts.outages:
        worst = next(_unavailable(facts))
        return False, worst.reason, worst.message
    if status.leaderless:
        return False, Reason.RECONCILING, f"{status.leaderless} of {status.partitions} partitions have no leader yet"
    return True, Reason.AS_EXPECTED, f"{status.partitions} partitions can be read and written"


def _progressing(facts: _Facts) -> tuple[bool, Reason, str]:
    if facts.moving:
        return True, Reason.REBALANCING, _progress_words(facts.status)
    if facts.problem is not None:
        return False, facts.problem.reason, "the spec cannot be carried out, see Degraded"
    if facts.paused:
        return False, Reason.PAUSED, facts.paused
    if facts.awaiting:
        return False, Reason.AWAITING_APPROVAL, f"plan {facts.status.plan} waits for its approval"
    if not facts.created:
        return True, Reason.RECONCILING, "it is being created"
    return False, Reason.AS_EXPECTED, ""


def _balanced(facts: _Facts) -> tuple[bool | None, Reason, str]:
    if facts.moving or facts.problem is not None or facts.awaiting:
        _, reason, words = _progressing(facts)
        return False, reason, words
    if facts.paused:
        words = "a plan is not carried to the end" if facts.unfinished else "nobody looks what a plan would change"
        return (False if facts.unfinished else None), Reason.PAUSED, f"{facts.paused}: {words}"
    return facts.created, Reason.AS_EXPECTED if facts.created else Reason.RECONCILING, ""


def _troubles(facts: _Facts) -> Iterator[Problem]:
    """What is wrong, the worst first."""
    if facts.created:
        yield from _unavailable(facts)
    if facts.problem is not None:
        yield facts.problem
    if facts.lost:
        named = ", ".join(facts.lost[:_STORES_SHOWN]) + (" ..." if len(facts.lost) > _STORES_SHOWN else "")
        yield Problem(Reason.STORES_LOST, f"stores that hold replicas are away: {named}")
    if facts.damages:
        partition, damage = next(iter(facts.damages.items()))
        yield Problem(
            Reason.REPLICA_DAMAGED,
            f"{len(facts.damages)} partitions have a replica whose rows are damaged or differ; partition {partition}: "
            f"{damage}; it is built anew from the others, where most of them have the same rows",
        )
    held_up = {partition: problem for partition, problem in facts.problems.items() if partition not in facts.damages}
    if held_up:
        partition, problem = next(iter(held_up.items()))
        yield Problem(
            Reason.CATCH_UP_FAILING, f"{len(held_up)} partitions do not get on; partition {partition}: {problem}"
        )


def _unavailable(facts: _Facts) -> Iterator[Problem]:
    """Why partitions cannot be read or written and what to do about it, the worst first."""
    for reason in OUTAGES:
        alike = [outage for outage in facts.outages if outage.reason is reason]
        if alike:
            stores = sorted({store for outage in alike for store in outage.stores})
            shown = Outage(reason, tuple(stores[:_STORES_SHOWN]))
            counted = f"{len(alike)} of {facts.status.partitions} partitions cannot be read or written"
            yield Problem(reason, f"{counted}: {shown.cause}; {shown.remedy}")


def _progress_words(status: TableStatus) -> str:
    if status.progress is None:
        return ""
    done, total = status.progress.moves_done, status.progress.moves_total
    return f"plan {status.plan}: {done} of {total} partitions are where it wants them"
