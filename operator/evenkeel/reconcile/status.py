"""A Table's status, folded from what the metastore says; whoever reconciled adds what only it knows.

Conditions keep their times for as long as their status stays the same: `now` shows only where something changed.

    Ready         every partition can be read and written
    Progressing   replicas are on their way, or are about to be
    Balanced      everything is where the newest spec wants it
    Degraded      something is wrong, and says what: without a leader, a spec that cannot be had, stores lost, rows
                  that are damaged or differ
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from evenkeel.model.conditions import Condition, Progress, Reason, condition, merge_conditions, projected
from evenkeel.model.partitionassignment import PartitionStatus
from evenkeel.model.table import StuckPartition, Table, TableStatus
from evenkeel.protocol.partition import PartitionView
from evenkeel.protocol.plan import Plan
from evenkeel.protocol.records import PlanState, StoreLoad, TableState, shape
from evenkeel.reconcile.partitions import Trouble, damages_of, problems_of
from evenkeel.reconcile.snapshot import TableSnapshot

__all__ = ["plan_progress", "table_status", "troubled_status"]

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
    was_ready: bool
    """Whether there was a time when every partition had a leader."""
    lost: tuple[str, ...]
    """Stores that hold replicas and give no sign of life."""
    problems: Mapping[int, str]
    damages: Mapping[int, str]
    """Those of the problems that are about rows."""
    trouble: Trouble | None

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
    trouble: Trouble | None = None,
    paused: str = "",
    now: str,
) -> TableStatus:
    """The table's status at the moment `now`."""
    before, plan = table.status, snapshot.plan
    damages, was_ready = damages_of(loads, snapshot.table), _was_ready(before)
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
        plan=plan.n if plan is not None else 0,
        plan_hash=plan.head.hash if plan is not None else "",
        progress=_table_progress(snapshot, before, now=now),
        stuck=tuple(_stuck(partitions, problems, before, was_ready=was_ready, now=now))[:_STUCK_SHOWN],
        bytes=_bytes(loads, snapshot.table),
        schema_version=before.schema_version if before is not None else 0,
    )
    facts = _Facts(
        status=status,
        created=snapshot.record is not None and snapshot.record.state is TableState.READY,
        awaiting=plan is not None and plan.head.state is PlanState.AWAITING_APPROVAL,
        paused=paused,
        was_ready=was_ready,
        lost=tuple(sorted({peer.store for entry in partitions for peer in entry.stable} - live)),
        problems=problems,
        damages=damages,
        trouble=trouble,
    )
    conditions = _conditions(facts, now=now, generation=table.metadata.generation)
    merged = merge_conditions(before.conditions if before is not None else (), conditions)
    told = status.model_copy(update={"conditions": merged})
    return before if before is not None and _only_grown(before, told) else told


def _only_grown(before: TableStatus, after: TableStatus) -> bool:
    """Whether nothing is new but a size that has hardly changed: a table that is written to grows all the time."""
    little = abs(after.bytes - before.bytes) * _LITTLE <= before.bytes
    return little and after.model_copy(update={"bytes": before.bytes}) == before


def troubled_status(table: Table, trouble: Trouble, *, now: str) -> TableStatus:
    """The status of before, with what is wrong: for when what the metastore says cannot be read."""
    before = table.status or TableStatus()
    generation = table.metadata.generation
    wrong = condition("Degraded", True, trouble.reason, trouble.message, now=now, generation=generation)
    return before.model_copy(update={"conditions": merge_conditions(before.conditions, [wrong])})


def _was_ready(before: TableStatus | None) -> bool:
    conditions = before.conditions if before is not None else ()
    return any(
        entry.type == "Ready" and (entry.status == "True" or entry.reason == Reason.QUORUM_LOST) for entry in conditions
    )


def _live(entry: PartitionStatus, live: set[str]) -> int:
    return sum(peer.store in live for peer in entry.stable)


def _voters(entry: PartitionStatus) -> int:
    return sum(peer.role == "Voter" for peer in entry.stable)


def _bytes(loads: Mapping[str, StoreLoad], table: str) -> int:
    """Of one copy, by what leaders report."""
    groups = (group for load in loads.values() for group in load.tables.get(table, ()))
    return sum(group.log_bytes for group in groups if group.leading)


# Progress


def _table_progress(snapshot: TableSnapshot, before: TableStatus | None, *, now: str) -> Progress | None:
    plan = snapshot.plan
    known = before.progress if before is not None and plan is not None and before.plan == plan.n else None
    return plan_progress(snapshot, known, now=now)


def plan_progress(snapshot: TableSnapshot, known: Progress | None, *, now: str) -> Progress | None:
    """How many of the partitions that the newest plan changes are where it wants them; `known` is what it was."""
    plan, record = snapshot.plan, snapshot.record
    if plan is None or record is None:
        return None
    left = sum(not _arrived(snapshot.partition(p), plan, p) for p in range(record.partitions))
    counted = plan.head.counts.partitions if plan.head.counts is not None else record.partitions
    total = max(left, counted)
    progress = Progress.of(moves=(total - left, total))
    started = known.started_at if known is not None and known.started_at else now
    expected = known.expected_at if known is not None and known.moves_done == progress.moves_done else None
    if left and progress.moves_done and expected is None:
        expected = projected(started, now, done=progress.moves_done, left=left)
    return progress.model_copy(update={"started_at": started, "expected_at": expected if left else None})


def _arrived(view: PartitionView, plan: Plan, partition: int) -> bool:
    at_rest = view.pending is None and view.planned is None and view.trigger >= plan.n
    return at_rest and view.stable is not None and shape(view.stable.peers) == shape(plan.target(partition))


def _stuck(
    partitions: list[PartitionStatus],
    problems: Mapping[int, str],
    before: TableStatus | None,
    *,
    was_ready: bool,
    now: str,
) -> Iterator[StuckPartition]:
    known = {entry.partition: entry.since for entry in before.stuck} if before is not None else {}
    for status in partitions:
        leaderless = "no store leads it" if was_ready and status.stage == "Leaderless" else ""
        reason = problems.get(status.partition) or leaderless
        if reason:
            since = known.get(status.partition) or now
            yield StuckPartition(partition=status.partition, stage=status.stage, since=since, reason=reason[:1024])


# Conditions


def _conditions(facts: _Facts, *, now: str, generation: int) -> list[Condition]:
    troubles = list(_troubles(facts))
    told = (
        ("Ready", *_ready(facts)),
        ("Progressing", *_progressing(facts)),
        ("Balanced", *_balanced(facts)),
        (
            "Degraded",
            bool(troubles),
            troubles[0].reason if troubles else Reason.AS_EXPECTED,
            "; ".join(trouble.message for trouble in troubles),
        ),
    )
    return [condition(*entry, now=now, generation=generation) for entry in told]  # type: ignore[arg-type]


def _ready(facts: _Facts) -> tuple[bool, Reason, str]:
    status = facts.status
    if not facts.created:
        if facts.trouble is not None:
            return False, facts.trouble.reason, "the table cannot be created, see Degraded"
        return False, Reason.PAUSED if facts.paused else Reason.RECONCILING, facts.paused or "it is being created"
    if status.leaderless:
        reason = Reason.QUORUM_LOST if facts.was_ready else Reason.RECONCILING
        return False, reason, f"{status.leaderless} of {status.partitions} partitions have no leader"
    return True, Reason.AS_EXPECTED, f"{status.partitions} partitions can be read and written"


def _progressing(facts: _Facts) -> tuple[bool, Reason, str]:
    if facts.moving:
        return True, Reason.REBALANCING, _progress_words(facts.status)
    if facts.trouble is not None:
        return False, facts.trouble.reason, "the spec cannot be carried out, see Degraded"
    if facts.paused:
        return False, Reason.PAUSED, facts.paused
    if facts.awaiting:
        return False, Reason.AWAITING_APPROVAL, f"plan {facts.status.plan} waits for its approval"
    if not facts.created:
        return True, Reason.RECONCILING, "it is being created"
    return False, Reason.AS_EXPECTED, ""


def _balanced(facts: _Facts) -> tuple[bool | None, Reason, str]:
    if facts.moving or facts.trouble is not None or facts.awaiting:
        _, reason, words = _progressing(facts)
        return False, reason, words
    if facts.paused:
        words = "a plan is not carried to the end" if facts.unfinished else "nobody looks what a plan would change"
        return (False if facts.unfinished else None), Reason.PAUSED, f"{facts.paused}: {words}"
    return facts.created, Reason.AS_EXPECTED if facts.created else Reason.RECONCILING, ""


def _troubles(facts: _Facts) -> Iterator[Trouble]:
    """What is wrong, the worst first."""
    status = facts.status
    if status.leaderless and facts.created and facts.was_ready:
        yield Trouble(Reason.QUORUM_LOST, f"{status.leaderless} partitions have no leader")
    if facts.trouble is not None:
        yield facts.trouble
    if facts.lost:
        named = ", ".join(facts.lost[:_STORES_SHOWN]) + (" ..." if len(facts.lost) > _STORES_SHOWN else "")
        yield Trouble(Reason.STORES_LOST, f"stores that hold replicas are away: {named}")
    if facts.damages:
        partition, damage = next(iter(facts.damages.items()))
        yield Trouble(
            Reason.REPLICA_DAMAGED,
            f"{len(facts.damages)} partitions have a replica whose rows are damaged or differ; partition {partition}: "
            f"{damage}; it is built anew from the others, where most of them have the same rows",
        )
    held_up = {partition: problem for partition, problem in facts.problems.items() if partition not in facts.damages}
    if held_up:
        partition, problem = next(iter(held_up.items()))
        yield Trouble(
            Reason.CATCH_UP_FAILING, f"{len(held_up)} partitions do not get on; partition {partition}: {problem}"
        )


def _progress_words(status: TableStatus) -> str:
    if status.progress is None:
        return ""
    done, total = status.progress.moves_done, status.progress.moves_total
    return f"plan {status.plan}: {done} of {total} partitions are where it wants them"
