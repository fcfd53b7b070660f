"""What users see: statuses folded from what the metastore says, and from nothing else.

Whoever reconciles adds what only it knows (why a spec cannot be carried out) as conditions of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec

from evenkeel.model.conditions import Condition, ConditionType, Progress, Reason, merge_conditions
from evenkeel.model.partitionassignment import (
    PartitionAssignmentStatus,
    PartitionStatus,
    PeerStatus,
)
from evenkeel.model.table import StuckPartition, Table, TableStatus
from evenkeel.model.views import SLICE
from evenkeel.protocol.keys import Keys
from evenkeel.protocol.partition import PartitionView
from evenkeel.protocol.records import Leader, Peer, PlanState, Role, StoreLoad, TableState, decode, shape
from evenkeel.reconcile.snapshot import TableSnapshot

__all__ = ["Trouble", "partition_statuses", "read_loads", "slice_status", "table_status"]

_STUCK_SHOWN = 20
Stage = Literal["Stable", "CatchingUp", "Locked", "Joint", "Waiting", "Leaderless"]


class Trouble(msgspec.Struct, frozen=True):
    """Why a reconciliation could not do what was asked."""

    reason: Reason
    message: str


def read_loads(kvs: Mapping[str, bytes], keys: Keys) -> dict[str, StoreLoad]:
    """What stores report, by store."""
    prefix = keys.load("")
    return {
        key.removeprefix(prefix): decode(StoreLoad, value, key=key)
        for key, value in kvs.items()
        if key.startswith(prefix)
    }


def partition_statuses(snapshot: TableSnapshot, loads: Mapping[str, StoreLoad]) -> list[PartitionStatus]:
    """Every partition as the metastore has it."""
    record = snapshot.record
    if record is None:
        return []
    leaders = _leaders(snapshot)
    filling = _filling(loads, snapshot.table)
    problems = _problems(loads, snapshot.table)
    return [
        _partition(snapshot, p, leaders.get(p), filling.get(p, {}), problems.get(p, ""))
        for p in range(record.partitions)
    ]


def _leaders(snapshot: TableSnapshot) -> dict[int, Leader]:
    """Who leads, where that is a store that lives: the key of a store that died stays until somebody else leads."""
    prefix, registered = snapshot.keys.leaders(snapshot.table), snapshot.registered
    found = {
        int(key.removeprefix(prefix)): decode(Leader, kv.value, key=key)
        for key, kv in snapshot.kvs.items()
        if key.startswith(prefix)
    }
    return {partition: leader for partition, leader in found.items() if leader.store in registered}


def _filling(loads: Mapping[str, StoreLoad], table: str) -> dict[int, dict[str, float]]:
    found: dict[int, dict[str, float]] = {}
    for load in loads.values():
        for name, stores in load.filling.items():
            owner, _, partition = name.rpartition("/")
            if owner == table:
                found[int(partition)] = stores
    return found


def _problems(loads: Mapping[str, StoreLoad], table: str) -> dict[int, str]:
    found: dict[int, str] = {}
    for store, load in sorted(loads.items()):
        for name, problem in load.problems.items():
            owner, _, partition = name.rpartition("/")
            if owner == table:
                found.setdefault(int(partition), f"{store}: {problem}")
    return found


def _partition(
    snapshot: TableSnapshot, partition: int, leader: Leader | None, filling: Mapping[str, float], problem: str
) -> PartitionStatus:
    view = snapshot.partition(partition)
    reasons = snapshot.plan.reasons(partition) if snapshot.plan is not None and _moving(view) else ()
    return PartitionStatus(
        partition=partition,
        stable=_peers(view.stable.peers if view.stable is not None else ()),
        pending=tuple(_peers(step) for step in view.pending.queue) if view.pending is not None else (),
        planned=_peers(view.planned.peers if view.planned is not None else ()),
        leader=leader.store if leader is not None else "",
        term=leader.term if leader is not None else 0,
        stage=_stage(view, leader),
        progress=_progress(view, filling),
        reason=(problem or "; ".join(reasons))[:1024],
    )


def _stage(view: PartitionView, leader: Leader | None) -> Stage:
    if leader is None:
        return "Leaderless"
    if view.lock is not None:
        return "Locked"
    if view.pending is not None:
        return "CatchingUp"
    return "Stable" if view.planned is None else "Waiting"


def _moving(view: PartitionView) -> bool:
    return view.pending is not None or view.planned is not None


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
    return tuple(
        PeerStatus(store=peer.store, role="Voter" if peer.role is Role.VOTER else "Learner", replica=peer.replica)
        for peer in peers
    )


def slice_status(
    partitions: list[PartitionStatus], first: int, *, before: PartitionAssignmentStatus | None, generation: int
) -> PartitionAssignmentStatus:
    """The status of the PartitionAssignment that begins at `first`."""
    own = tuple(partitions[first : first + SLICE])
    return PartitionAssignmentStatus(
        observed_generation=generation,
        conditions=before.conditions if before is not None else (),
        partitions=own,
        moving=sum(bool(status.pending or status.planned) for status in own),
        leaderless=sum(not status.leader for status in own),
    )


def table_status(
    table: Table,
    snapshot: TableSnapshot,
    partitions: list[PartitionStatus],
    *,
    loads: Mapping[str, StoreLoad],
    trouble: Trouble | None,
    now: str,
) -> TableStatus:
    """The table's status at the moment `now`; conditions keep their times where nothing changed."""
    moving = sum(bool(status.pending or status.planned) for status in partitions)
    leaderless = sum(not status.leader for status in partitions)
    live = set(snapshot.registered)
    under = sum(_under_replicated(status, table.spec.replicas, live) for status in partitions)
    before = table.status
    plan = snapshot.plan
    status = TableStatus(
        observed_generation=table.metadata.generation,
        partitions=len(partitions),
        replicas=min((len(status.stable) for status in partitions), default=0),
        consensus_size=min((_voters(status) for status in partitions), default=0),
        moving=moving,
        leaderless=leaderless,
        under_replicated=under,
        plan=plan.n if plan is not None else 0,
        plan_hash=plan.head.hash if plan is not None else "",
        progress=_plan_progress(snapshot, before, now=now),
        stuck=tuple(_stuck(partitions, _problems(loads, snapshot.table), before, now=now))[:_STUCK_SHOWN],
        bytes=_bytes(loads, snapshot.table),
    )
    conditions = _conditions(table, snapshot, status, trouble=trouble, now=now)
    merged = merge_conditions(before.conditions if before is not None else (), conditions)
    return status.model_copy(update={"conditions": merged})


def _under_replicated(status: PartitionStatus, replicas: int, live: set[str]) -> bool:
    return sum(peer.store in live for peer in status.stable) < replicas


def _voters(status: PartitionStatus) -> int:
    return sum(peer.role == "Voter" for peer in status.stable)


def _bytes(loads: Mapping[str, StoreLoad], table: str) -> int:
    """Of one copy, by what leaders report."""
    groups = (group for load in loads.values() for group in load.tables.get(table, ()))
    return sum(group.log_bytes for group in groups if group.leading)


def _plan_progress(snapshot: TableSnapshot, before: TableStatus | None, *, now: str) -> Progress | None:
    """How many partitions are where the newest plan wants them."""
    plan, record = snapshot.plan, snapshot.record
    if plan is None or record is None:
        return None
    views = [snapshot.partition(p) for p in range(record.partitions)]
    done = sum(_arrived(view, plan.n, shape(plan.target(p))) for p, view in enumerate(views))
    known = before.progress if before is not None and before.plan == plan.n else None
    started = known.started_at if known is not None and known.started_at else now
    return Progress.of(moves=(done, record.partitions)).model_copy(update={"started_at": started})


def _arrived(view: PartitionView, n: int, target: object) -> bool:
    at_rest = view.pending is None and view.planned is None and view.trigger >= n
    return at_rest and view.stable is not None and shape(view.stable.peers) == target


def _stuck(
    partitions: list[PartitionStatus], problems: Mapping[int, str], before: TableStatus | None, *, now: str
) -> Iterator[StuckPartition]:
    known = {entry.partition: entry.since for entry in before.stuck} if before is not None else {}
    for status in partitions:
        reason = problems.get(status.partition) or ("no store leads it" if status.stage == "Leaderless" else "")
        if reason:
            since = known.get(status.partition) or now
            yield StuckPartition(partition=status.partition, stage=status.stage, since=since, reason=reason[:1024])


def _conditions(
    table: Table, snapshot: TableSnapshot, status: TableStatus, *, trouble: Trouble | None, now: str
) -> list[Condition]:
    def condition(kind: ConditionType, holds: bool, reason: Reason, message: str) -> Condition:
        return Condition(
            type=kind,
            status="True" if holds else "False",
            reason=reason.value,
            message=message,
            last_transition_time=now,
            observed_generation=table.metadata.generation,
        )

    ready, why = _ready(snapshot, status)
    moving = status.moving > 0 or (status.progress is not None and status.progress.percentage < 100)
    waiting = snapshot.plan is not None and snapshot.plan.head.state is PlanState.AWAITING_APPROVAL
    progressing = Reason.AWAITING_APPROVAL if waiting else Reason.REBALANCING if moving else Reason.AS_EXPECTED
    degraded = trouble or _degraded(status)
    return [
        condition("Ready", ready, Reason.AS_EXPECTED if ready else Reason.RECONCILING, why),
        condition("Progressing", moving and not waiting, progressing, _progress_words(status)),
        condition("Balanced", not moving and not waiting, progressing, "" if not moving else _progress_words(status)),
        condition(
            "Degraded",
            degraded is not None,
            degraded.reason if degraded is not None else Reason.AS_EXPECTED,
            degraded.message if degraded is not None else "",
        ),
    ]


def _ready(snapshot: TableSnapshot, status: TableStatus) -> tuple[bool, str]:
    if snapshot.record is None or snapshot.record.state is not TableState.READY:
        return False, "the table is being created"
    if status.leaderless:
        return False, f"{status.leaderless} of {status.partitions} partitions have no leader"
    return True, f"{status.partitions} partitions can be read and written"


def _degraded(status: TableStatus) -> Trouble | None:
    if status.leaderless:
        return Trouble(Reason.QUORUM_LOST, f"{status.leaderless} partitions have no leader")
    if status.under_replicated and not status.moving:
        return Trouble(Reason.STORES_LOST, f"{status.under_replicated} partitions have fewer live replicas than wanted")
    return None


def _progress_words(status: TableStatus) -> str:
    if status.progress is None:
        return ""
    done, total = status.progress.moves_done, status.progress.moves_total
    return f"plan {status.plan}: {done} of {total} partitions are where it wants them"
