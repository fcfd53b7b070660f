"""The statuses of partitions and PartitionAssignments, derived from the metastore and the stores' reports."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Literal, TypeVar

from evenkeel.model.conditions import Condition, Reason, condition, merge_conditions, with_kstatus
from evenkeel.model.partitionassignment import (
    PartitionAssignment,
    PartitionAssignmentStatus,
    PartitionStatus,
    PeerStatus,
)
from evenkeel.model.table import Table
from evenkeel.model.views import SLICE
from evenkeel.protocol.partition_view import PartitionView
from evenkeel.protocol.records import Leader, Peer, PlanState, Role, StoreLoad
from evenkeel.reconcile.desired_table import USERS_CHOOSE
from evenkeel.reconcile.outages import answering_leaders, outages_of
from evenkeel.reconcile.readiness import Problem, assignment_ready
from evenkeel.reconcile.table_snapshot import TableSnapshot

__all__ = ["copy_progress_of", "damages_of", "partition_statuses", "problems_of", "slice_status"]

_LONGEST_REASON = 1024
_REMEMBERED = 16_384
T = TypeVar("T")
Stage = Literal["Stable", "CatchingUp", "Locked", "Waiting", "Leaderless"]


def partition_statuses(
    snapshot: TableSnapshot, loads: Mapping[str, StoreLoad], *, blocked: Mapping[int, str] | None = None
) -> list[PartitionStatus]:
    """Return the status of every partition; `blocked` is why some cannot reach their targets."""
    record = snapshot.record
    if record is None:
        return []
    leaders = answering_leaders(snapshot)
    outages = outages_of(snapshot, (p for p in range(record.partitions) if p not in leaders), loads)
    filling = copy_progress_of(loads, snapshot.table)
    table = snapshot.table
    down = {partition: outage.cause for partition, outage in outages.items()}
    problems = {**(blocked or {}), **down, **problems_of(loads, table), **damages_of(loads, table)}
    return [
        _partition(snapshot, p, leaders.get(p), filling.get(p, {}), problems.get(p, ""))
        for p in range(record.partitions)
    ]


def copy_progress_of(loads: Mapping[str, StoreLoad], table: str) -> dict[int, dict[str, float]]:
    """Return, by partition, the stores that receive a copy, and how much of it (0 to 1) each has."""
    return dict(_of_table((load.filling for load in loads.values()), table))


def problems_of(loads: Mapping[str, StoreLoad], table: str) -> dict[int, str]:
    """Return, by partition, why it makes no progress, as the first store reports it."""
    found: dict[int, str] = {}
    for store, load in sorted(loads.items()):
        for partition, problem in _of_table([load.problems], table):
            found.setdefault(partition, f"{store}: {problem}")
    return found


def damages_of(loads: Mapping[str, StoreLoad], table: str) -> dict[int, str]:
    """Return, by partition, how the rows of replicas are damaged, as all stores report it."""
    found: dict[int, list[str]] = {}
    for store, load in sorted(loads.items()):
        damaged = {name: load.problems.get(name, "the replica's rows are damaged") for name in load.damaged}
        for partition, problem in _of_table([damaged], table):
            found.setdefault(partition, []).append(f"{store}: {problem}")
    return {partition: "; ".join(reports) for partition, reports in sorted(found.items())}


def _of_table(reports: Iterable[Mapping[str, T]], table: str) -> Iterator[tuple[int, T]]:
    """Select one table's partitions from reports by `<table>/<partition>`."""
    for report in reports:
        for name, value in report.items():
            owner, _, partition = name.rpartition("/")
            if owner == table and partition.isdecimal():
                yield int(partition), value


def _partition(
    snapshot: TableSnapshot, partition: int, leader: Leader | None, filling: Mapping[str, float], problem: str
) -> PartitionStatus:
    view = snapshot.partition(partition)
    waiting = _withheld(snapshot, view)
    moving = view.pending is not None or view.planned is not None or waiting
    reasons = snapshot.plan.reasons(partition) if snapshot.plan is not None and moving else ()
    return PartitionStatus(
        partition=partition,
        stable=_peers(view.stable.peers if view.stable is not None else ()),
        pending=tuple(_peers(step) for step in view.pending.queue) if view.pending is not None else (),
        planned=_peers(view.planned.peers if view.planned is not None else ()),
        leader=leader.store if leader is not None else "",
        term=leader.term if leader is not None else 0,
        stage=_stage(view, leader, waiting=waiting),
        progress=_progress(view, filling),
        reason=(problem or "; ".join(reasons))[:_LONGEST_REASON],
    ).lean()


def _withheld(snapshot: TableSnapshot, view: PartitionView) -> bool:
    """Whether the newest plan has not begun on the partition yet, because others have to finish first."""
    plan = snapshot.plan
    return plan is not None and plan.head.state is PlanState.ACTIVE and view.trigger < plan.n


def _stage(view: PartitionView, leader: Leader | None, *, waiting: bool) -> Stage:
    if leader is None:
        return "Leaderless"
    if view.lock is not None:
        return "Locked"
    if view.pending is not None:
        return "CatchingUp"
    return "Waiting" if view.planned is not None or waiting else "Stable"


def _progress(view: PartitionView, filling: Mapping[str, float]) -> int:
    """Return how many per cent of the data new replicas have."""
    if view.pending is None or view.stable is None:
        return 100
    present = {peer.id for peer in view.stable.peers}
    joining = {peer.store for peer in view.pending.peers() if peer.id not in present}
    if not joining or view.lock is not None:
        return 99
    return min(99, int(100 * sum(filling.get(store, 0.0) for store in joining) / len(joining)))


def _peers(peers: tuple[Peer, ...]) -> tuple[PeerStatus, ...]:
    return tuple([_peer(peer) for peer in peers])


@lru_cache(maxsize=_REMEMBERED)
def _peer(peer: Peer) -> PeerStatus:
    """Return a shared object: there are more replicas than anything else."""
    role: Literal["Voter", "Learner"] = "Voter" if peer.role is Role.VOTER else "Learner"
    return PeerStatus(store=peer.store, role=role, replica=peer.replica).lean()


def slice_status(
    table: Table,
    assignment: PartitionAssignment,
    partitions: list[PartitionStatus],
    *,
    problem: Problem | None,
    now: str,
) -> PartitionAssignmentStatus:
    """Return the status of one of the table's PartitionAssignments."""
    first, generation = assignment.spec.from_, assignment.metadata.generation
    own = tuple(partitions[first : first + SLICE])
    moving = sum(bool(status.pending or status.planned) for status in own)
    leaderless = sum(not status.leader for status in own)
    before = assignment.status.conditions if assignment.status is not None else ()
    accepted = _accepted(table, assignment, problem=problem, now=now)
    kept = [entry for entry in before if accepted is not None or entry.type != "Accepted"]
    verdict = assignment_ready(accepted, partitions=len(own), leaderless=leaderless, moving=moving)
    ready = condition("Ready", *verdict, now=now, generation=generation)
    conditions = merge_conditions(kept, [ready, *([accepted] if accepted is not None else [])])
    return PartitionAssignmentStatus(
        observed_generation=generation,
        conditions=with_kstatus(conditions, now=now),
        partitions=own,
        moving=moving,
        leaderless=leaderless,
    )


def _accepted(table: Table, assignment: PartitionAssignment, *, problem: Problem | None, now: str) -> Condition | None:
    """Return whether the user's choices are applied; None if there are none."""
    if not assignment.spec.partitions:
        return None
    generation, mode = assignment.metadata.generation, table.spec.rebalancer.mode
    if mode not in USERS_CHOOSE:
        message = (
            f"spec.partitions is ignored, because table {table.metadata.name} has mode {mode}, in which a rebalancer "
            "places replicas; set its rebalancer.mode to SemiAuto or Customized, or remove spec.partitions"
        )
        return condition("Accepted", False, Reason.SPEC_IGNORED, message, now=now, generation=generation)
    if problem is not None:
        return condition("Accepted", False, problem.reason, problem.message, now=now, generation=generation)
    return condition("Accepted", True, Reason.AS_EXPECTED, now=now, generation=generation)
