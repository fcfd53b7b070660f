"""Which partitions a plan may be carried to now.

A change occupies the stores it comes from and the stores it goes to until it has ended, so what would exceed a store's
cap, or the number of changes allowed at once, is withheld; a later reconciliation lets it in. Partitions that need no
new replica are never withheld: they only note that they have handled the plan.
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
    """What may begin, what waits, and what no order of moves could ever do."""

    partitions: list[int]
    withheld: int
    blocked: dict[int, str]
    """Partition -> why no order of moves gets it to its target."""


def arrived(snapshot: TableSnapshot, plan: Plan, *, partitions: int) -> list[bool]:
    """Whether each partition is where the plan wants it."""
    views = (snapshot.partition(partition) for partition in range(partitions))
    return [view.pending is None and view.trigger >= plan.n for view in views]


def admit(
    snapshot: TableSnapshot, plan: Plan, *, table: TableView, stores: StoresView, max_concurrent: int | None
) -> Admission:
    """Divide the table's partitions for this moment."""
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
