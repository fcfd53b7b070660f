"""What the operator writes when one partition gets a new target.

A decision depends on one `PartitionView` and is written in one transaction that compares the keys as read. So any
number of operators can race and be killed anywhere: a decision based on stale keys fails. The first matching case
applies:

    target without a voter                           -> refuse: an empty target is never stored
    stable absent                                    -> refuse: the table is not ready
    trigger >= n                                     -> nothing: already handled (one exception, see below)
    pending absent,  stable == target                -> remove planned;                            trigger = n
    pending absent,  stable != target                -> pending = steps(stable, target);           trigger = n
    pending present, last(pending) == target         -> remove planned;                            trigger = n
    pending present, lock absent, and Adjust or
      pending names a replica that cannot come back  -> pending = steps(stable, target), or removed
                                                        if there are none; remove planned;         trigger = n
    pending present otherwise                        -> planned = target;                          trigger = n

The trigger is written even if nothing else changes. Otherwise an older plan could be applied later.

The exception: in Queue mode no leader promotes planned. If a replica that pending waits for is lost after plan n
became planned, plan n replaces pending as long as the lock is absent. Otherwise both would wait forever.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence

import msgspec

from evenkeel.metastore.metastore_api import Delete, Op, Put
from evenkeel.protocol.change_steps import assign_ids, pending_of
from evenkeel.protocol.keys import PartitionKeys
from evenkeel.protocol.partition_view import PartitionView
from evenkeel.protocol.records import (
    Peer,
    Planned,
    Retarget,
    Role,
    Stable,
    TargetPeer,
    encode,
    shape,
)

__all__ = ["Case", "Decision", "retarget"]


class Case(enum.StrEnum):
    """The case of the table above that applied."""

    EMPTY_TARGET = "empty-target"
    NOT_READY = "not-ready"
    HANDLED = "handled"
    REACHED = "reached"
    STARTED = "started"
    UNDER_WAY = "under-way"
    ADJUSTED = "adjusted"
    RETURNED = "returned"
    PLANNED = "planned"


class Decision(msgspec.Struct, frozen=True, gc=False):
    """What to write for one partition, and which case applied; no operations means nothing is written."""

    case: Case
    ops: tuple[Op, ...] = ()


def retarget(
    view: PartitionView,
    target: Sequence[TargetPeer],
    *,
    keys: PartitionKeys,
    plan: int,
    mode: Retarget,
    gone: Callable[[Peer], bool] = lambda _: False,
) -> Decision:
    """Decide what plan number `plan` writes for the partition; `gone` is true for replicas that cannot come back."""
    if Role.VOTER not in [peer.role for peer in target]:
        return Decision(Case.EMPTY_TARGET)
    if view.stable is None:
        return Decision(Case.NOT_READY)
    if view.trigger >= plan and not (view.trigger == plan and _stranded(view, mode=mode, gone=gone)):
        return Decision(Case.HANDLED)
    put_trigger = Put(keys.trigger, encode(plan))
    no_planned: tuple[Op, ...] = (Delete(keys.planned),) if view.planned is not None else ()
    if view.pending is not None and shape(target) == shape(view.pending.last):
        return Decision(Case.UNDER_WAY, (*no_planned, put_trigger))
    if view.pending is None or _may_replace(view, mode=mode, gone=gone):
        return _replace(view, view.stable, target, keys=keys, plan=plan, rest=(*no_planned, put_trigger))
    planned = Planned(assign_ids(target, keep=view.pending.last, plan=plan))
    return Decision(Case.PLANNED, (Put(keys.planned, encode(planned)), put_trigger))


def _stranded(view: PartitionView, *, mode: Retarget, gone: Callable[[Peer], bool]) -> bool:
    """Whether planned waits for a change that a lost replica blocks, and no leader will promote planned."""
    return mode is Retarget.QUEUE and view.planned is not None and _may_replace(view, mode=mode, gone=gone)


def _may_replace(view: PartitionView, *, mode: Retarget, gone: Callable[[Peer], bool]) -> bool:
    """Whether the operator may overwrite pending instead of writing planned."""
    if view.lock is not None or view.pending is None:
        return False
    return mode is Retarget.ADJUST or any(gone(peer) for peer in view.pending.peers())


def _replace(
    view: PartitionView,
    stable: Stable,
    target: Sequence[TargetPeer],
    *,
    keys: PartitionKeys,
    plan: int,
    rest: tuple[Op, ...],
) -> Decision:
    """Write pending = steps(stable, target), or remove pending if stable already equals the target."""
    started = view.pending.peers() if view.pending is not None else ()
    queue = pending_of(stable.peers, assign_ids(target, keep=started, plan=plan))
    if queue is not None:
        case = Case.STARTED if view.pending is None else Case.ADJUSTED
        return Decision(case, (Put(keys.pending, encode(queue)), *rest))
    if view.pending is not None:
        return Decision(Case.RETURNED, (Delete(keys.pending), *rest))
    return Decision(Case.REACHED, rest)
