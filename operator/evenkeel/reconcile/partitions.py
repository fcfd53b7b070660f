"""Partitions as users see them, folded from what the metastore and the stores' reports say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Literal, TypeVar

import msgspec

from evenkeel.errors import MalformedRecordError
from evenkeel.metastore.api import KeyValue
from evenkeel.model.conditions import Condition, Reason, condition, merge_conditions
from evenkeel.model.partitionassignment import (
    PartitionAssignment,
    PartitionAssignmentStatus,
    PartitionStatus,
    PeerStatus,
)
from evenkeel.model.table import Table
from evenkeel.model.views import SLICE
from evenkeel.protocol.keys import Keys
from evenkeel.protocol.partition import PartitionView
from evenkeel.protocol.records import Leader, Peer, PlanState, Role, StoreLoad, decode
from evenkeel.reconcile.snapshot import TableSnapshot
from evenkeel.reconcile.wish import USERS_CHOOSE

__all__ = ["Trouble", "damages_of", "partition_statuses", "problems_of", "read_loads", "slice_status"]

_LONGEST_REASON = 1024
_REMEMBERED = 16_384
T = TypeVar("T")
Stage = Literal["Stable", "CatchingUp", "Locked", "Joint", "Waiting", "Leaderless"]


class Trouble(msgspec.Struct, frozen=True):
    """Why a reconciliation could not do what was asked."""

    reason: Reason
    message: str


def read_loads(kvs: Iterable[KeyValue], keys: Keys) -> dict[str, StoreLoad]:
    """What stores report, by store; a report that cannot be read tells nothing."""
    found: dict[str, StoreLoad] = {}
    for kv in kvs:
        try:
            found[kv.key.removeprefix(keys.load(""))] = decode(StoreLoad, kv.value, key=kv.key)
        except MalformedRecordError:
            continue
    return found


def partition_statuses(
    snapshot: TableSnapshot, loads: Mapping[str, StoreLoad], *, blocked: Mapping[int, str] | None = None
) -> list[PartitionStatus]:
    """Every partition as the metastore has it; `blocked` says why some cannot get to their targets."""
    record = snapshot.record
    if record is None:
        return []
    leaders = _leaders(snapshot)
    filling = dict(_of_table((load.filling for load in loads.values()), snapshot.table))
    table = snapshot.table
    problems = {**(blocked or {}), **problems_of(loads, table), **damages_of(loads, table)}
    return [
        _partition(snapshot, p, leaders.get(p), filling.get(p, {}), problems.get(p, ""))
        for p in range(record.partitions)
    ]


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


def _leaders(snapshot: TableSnapshot) -> dict[int, Leader]:
    """Who leads, where that is a store that lives: the key of a store that died stays until somebody else leads."""
    registered = snapshot.registered
    return {partition: leader for partition, leader in snapshot.leaders.items() if leader.store in registered}


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
    trouble: Trouble | None,
    now: str,
) -> PartitionAssignmentStatus:
    """The status of one of the table's PartitionAssignments."""
    first = assignment.spec.from_
    own = tuple(partitions[first : first + SLICE])
    before = assignment.status.conditions if assignment.status is not None else ()
    verdict = _verdict(table, assignment, trouble=trouble, now=now)
    kept = [entry for entry in before if entry.type == "Accepted"] if verdict else []
    return PartitionAssignmentStatus(
        observed_generation=assignment.metadata.generation,
        conditions=merge_conditions(kept, verdict),
        partitions=own,
        moving=sum(bool(status.pending or status.planned) for status in own),
        leaderless=sum(not status.leader for status in own),
    )


def _verdict(table: Table, assignment: PartitionAssignment, *, trouble: Trouble | None, now: str) -> list[Condition]:
    """Whether the user's word counts; nothing where there is none."""
    if not assignment.spec.partitions:
        return []
    generation, mode = assignment.metadata.generation, table.spec.rebalancer.mode
    if mode not in USERS_CHOOSE:
        words = (
            f"spec.partitions is ignored, because table {table.metadata.name} has mode {mode}, where a rebalancer "
            "decides; set its rebalancer.mode to SemiAuto or Customized, or take the partitions out"
        )
        return [condition("Accepted", False, Reason.SPEC_IGNORED, words, now=now, generation=generation)]
    if trouble is not None:
        return [condition("Accepted", False, trouble.reason, trouble.message, now=now, generation=generation)]
    return [condition("Accepted", True, Reason.AS_EXPECTED, now=now, generation=generation)]
