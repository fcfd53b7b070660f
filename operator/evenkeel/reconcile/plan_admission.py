"""Decides which partitions may start to move now.

A move occupies its source and target stores until it ends. A partition whose move would exceed a store's cap or the
limit of concurrent moves is withheld until a later reconciliation. A partition that needs no new replica is never
withheld: it only records that it has handled the plan.
"""

from __future__ import annotations

import msgspec

from evenkeel.model.views import Assignment, StoresView, TableView
from evenkeel.planner.move_order import Underway, order
from evenkeel.protocol.partition_view import PartitionView, previous
from evenkeel.protocol.records import Role
from evenkeel.protocol.stored_plan import Plan
from evenkeel.reconcile.table_snapshot import TableSnapshot

__all__ = ["Admission", "admit", "arrived"]


class Admission(msgspec.Struct, frozen=True, kw_only=True):
    """Which partitions may begin, how many wait, and which can never reach their targets."""

    partitions: list[int]
    withheld: int
    blocked: dict[int, str]
    """By partition, why no order of moves reaches its target."""


def arrived(snapshot: TableSnapshot, plan: Plan, *, partitions: int) -> list[bool]:
    """Return, for each partition, whether it has reached the plan's target."""
    views = (snapshot.partition(partition) for partition in range(partitions))
    return [view.pending is None and view.trigger >= plan.n for view in views]


def admit(
    snapshot: TableSnapshot, plan: Plan, *, table: TableView, stores: StoresView, max_concurrent: int | None
) -> Admission:
    """Decide which of the table's partitions may begin now."""
    views = [snapshot.partition(partition) for partition in range(table.partitions)]
    there = arrived(snapshot, plan, partitions=table.partitions)
    if all(there):
        return Admission(partitions=list(range(table.partitions)), withheld=0, blocked={})
    target = [[peer.store for peer in plan.target(partition)] for partition in range(table.partitions)]
    stable = [target[p] if there[p] else _stable(view) for p, view in enumerate(views)]
    ordered = order(
        Assignment.of(target, voters=table.consensus_size),
        stable=Assignment.of(stable, voters=table.consensus_size),
        table=table,
        stores=stores,
        underway={p: _underway(view) for p, view in enumerate(views) if view.pending is not None},
        max_concurrent=max_concurrent,
    )
    waiting = {partition for wave in ordered.waves[1:] for partition in wave}
    blocked = {entry.partition: entry.reason for entry in ordered.blocked}
    return Admission(
        partitions=[p for p in range(table.partitions) if p not in waiting and p not in blocked],
        withheld=len(waiting),
        blocked=blocked,
    )


def _stable(view: PartitionView) -> list[str]:
    peers = view.stable.peers if view.stable is not None else ()
    return [peer.store for peer in sorted(peers, key=lambda peer: (peer.role is not Role.VOTER, peer.store))]


def _underway(view: PartitionView) -> Underway:
    return Underway(
        occupied=frozenset(peer.store for peer in view.peers()), final=tuple(peer.store for peer in previous(view))
    )
