"""Partitions as users see them, folded from what the metastore and the stores' reports say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Literal, TypeVar

import msgspec

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
from evenkeel.reconcile.table_snapshot import TableSnapshot

__all__ = ["Problem", "damages_of", "fillings_of", "partition_statuses", "problems_of", "slice_status"]

_LONGEST_REASON = 1024
_REMEMBERED = 16_384
T = TypeVar("T")
Stage = Literal["Stable", "CatchingUp", "Locked", "Waiting", "Leaderless"]


class Problem(msgspec.Struct, frozen=True):
    """Why a reconciliation could not do what was asked."""

    reason: Reason
    message: str


def partition_statuses(
    snapshot: TableSnapshot, loads: Mapping[str, StoreLoad], *, blocked: Mapping[int, str] | None = None
) -> list[PartitionStatus]:
    """Every partition as the metastore has it; `blocked` says why some cannot get to their targets."""
    record = snapshot.record
    if record is None:
        return []
    leaders = answering_leaders(snapshot)
    outages = outages_of(snapshot, (p for p in range(record.partitions) if p not in leaders), loads)
    filling = fillings_of(loads, snapshot.table)
    table = snapshot.table
    down = {partition: outage.cause for partition, outage in outages.items()}
    problems = {**(blocked or {}), **down, **problems_of(loads, table), **damages_of(loads, table)}
    return [
        _partition(snapshot, p, leaders.get(p), filling.get(p, {}), problems.get(p, ""))
        for p in range(record.partitions)
    ]


def fillings_of(loads: Mapping[str, StoreLoad], table: str) -> dict[int, dict[str, float]]:
    """By partition, the stores whose replicas are being filled, and how far (0 to 1) each is."""
    return dict(_of_table((load.filling for load in loads.values()), table))


def problems_of(loads: Mapping[str, StoreLoad], table: str) -> dict[int, str]:
    """By partition, why it does not get on; one store's word for each."""
    found: dict[int, str] = {}
    for store, load in sorted(loads.items()):
        for partition, problem in _of_table([load.problems], table):
            found.setdefault(partition, f"{store}: {problem}")
    return found


def damages_of(loads: Mapping[str, StoreLoad], table: str) -> dict[int, str]:
    """By partition, what is wrong with the rows of a replica; all stores' words for each."""
    found: dict[int, list[str]] = {}
    for store, load in sorted(loads.items()):
        damaged = {name: load.problems.get(name, "its rows are damaged") for name in load.damaged}
        for partition, problem in _of_table([damaged], table):
            found.setdefault(partition, []).append(f"{store}: {problem}")
    return {partition: "; ".join(words) for partition, words in sorted(found.items())}


def _of_table(reports: Iterable[Mapping[str, T]], table: str) -> Iterator[tuple[int, T]]:
    """What reports by `<table>/<partition>` say of one table."""
    for report in reports:
        for name, value in report.items():
            owner, _, partition = name.rpartition("/")
            if owner == table and partition.isdecimal():
                yield int(partition), value


def _partition(
    snapshot: TableSnapshot, partition: int, leader: Leader | None, filling: Mapping[str, float], problem: str
) -> PartitionStatus:
    view = snapshot.partition(partition)
    waiting = _waits(snapshot, view)
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


def _waits(snapshot: TableSnapshot, view: PartitionView) -> bool:
    """Whether the newest plan has not reached the partition yet: others have to arrive first."""
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
    """Per cent of what is to be copied to newcomers that is there."""
    if view.pending is None or view.stable is None:
        return 100
    present = {peer.id for peer in view.stable.peers}
    newcomers = {peer.store for peer in view.pending.peers() if peer.id not in present}
    if not newcomers or view.lock is not None:
        return 99
    return min(99, int(100 * sum(filling.get(store, 0.0) for store in newcomers) / len(newcomers)))


def _peers(peers: tuple[Peer, ...]) -> tuple[PeerStatus, ...]:
    return tuple([_peer(peer) for peer in peers])


@lru_cache(maxsize=_REMEMBERED)
def _peer(peer: Peer) -> PeerStatus:
    """One for all partitions and looks that show it: of replicas there are more than of anything else."""
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
    """The status of one of the table's PartitionAssignments."""
    first = assignment.spec.from_
    own = tuple(partitions[first : first + SLICE])
    before = assignment.status.conditions if assignment.status is not None else ()
    verdict = _verdict(table, assignment, problem=problem, now=now)
    kept = [entry for entry in before if verdict is not None or entry.type != "Accepted"]
    told = [_slice_ready(assignment, own, verdict, now=now), *([verdict] if verdict is not None else [])]
    return PartitionAssignmentStatus(
        observed_generation=assignment.metadata.generation,
        conditions=with_kstatus(merge_conditions(kept, told), now=now),
        partitions=own,
        moving=sum(bool(status.pending or status.planned) for status in own),
        leaderless=sum(not status.leader for status in own),
    )


def _slice_ready(
    assignment: PartitionAssignment, own: tuple[PartitionStatus, ...], verdict: Condition | None, *, now: str
) -> Condition:
    """Whether the user's choices are accepted and in place, and every partition is led."""
    generation = assignment.metadata.generation
    if verdict is not None and verdict.status != "True":
        return condition("Ready", False, Reason(verdict.reason), verdict.message, now=now, generation=generation)
    unled = sum(not status.leader for status in own)
    if unled:
        words = f"{unled} of {len(own)} partitions have no leader; see the Table"
        return condition("Ready", False, Reason.NO_LEADER, words, now=now, generation=generation)
    moving = sum(bool(status.pending or status.planned) for status in own)
    if verdict is not None and moving:
        words = f"{moving} of {len(own)} partitions move"
        return condition("Ready", False, Reason.REBALANCING, words, now=now, generation=generation)
    return condition("Ready", True, Reason.AS_EXPECTED, now=now, generation=generation)


def _verdict(table: Table, assignment: PartitionAssignment, *, problem: Problem | None, now: str) -> Condition | None:
    """Whether the user's word counts; nothing where there is none."""
    if not assignment.spec.partitions:
        return None
    generation, mode = assignment.metadata.generation, table.spec.rebalancer.mode
    if mode not in USERS_CHOOSE:
        words = (
            f"spec.partitions is ignored, because table {table.metadata.name} has mode {mode}, where a rebalancer "
            "decides; set its rebalancer.mode to SemiAuto or Customized, or take the partitions out"
        )
        return condition("Accepted", False, Reason.SPEC_IGNORED, words, now=now, generation=generation)
    if problem is not None:
        return condition("Accepted", False, problem.reason, problem.message, now=now, generation=generation)
    return condition("Accepted", True, Reason.AS_EXPECTED, now=now, generation=generation)
