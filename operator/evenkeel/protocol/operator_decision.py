"""The operator's half of the rebalance protocol: what one new target does to one partition.

Everything is decided from one `PartitionView` and written in one transaction that compares what was read, so
any number of operators may race and be killed anywhere: a decision made on old keys does not land. The cases,
first match wins:

    target without a voter                           -> refuse: an empty target is never stored
    stable absent                                    -> refuse: the table is not ready
    trigger >= n                                     -> nothing: handled (but for one exception, see below)
    pending absent,  stable == target                -> remove planned;                            trigger = n
    pending absent,  stable != target                -> pending = steps(stable, target);           trigger = n
    pending present, last(pending) == target         -> remove planned;                            trigger = n
    pending present, lock absent, and Adjust or
      pending names a replica that cannot come back  -> pending = steps(stable, target), or removed
                                                        if there are none; remove planned;         trigger = n
    pending present otherwise                        -> planned = target;                          trigger = n

Whoever sees a plan writes its number as the trigger, also where nothing else changes: a no-op that left the
trigger behind would let an older plan win later.

The exception: in Queue mode no leader promotes planned. When plan n went to planned and a replica that pending waits
for is lost only afterwards, plan n itself replaces pending, lock absent; otherwise both would wait for ever.
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
    """Which line of the table applied."""

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
    """What to write for one partition, and why; no operations means nothing is written."""

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
    """Decide what plan number `plan` does to the partition; `gone` tells replicas that cannot come back."""
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
    """Whether planned waits for a change that a lost replica blocks, and that no leader will put aside for it."""
    return mode is Retarget.QUEUE and view.planned is not None and _may_replace(view, mode=mode, gone=gone)


def _may_replace(view: PartitionView, *, mode: Retarget, gone: Callable[[Peer], bool]) -> bool:
    """Whether the operator itself may overwrite pending instead of leaving word in planned."""
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
    """Write pending = steps(stable, target), or see that there is none where stable is already what is wanted."""
    started = view.pending.peers() if view.pending is not None else ()
    queue = pending_of(stable.peers, assign_ids(target, keep=started, plan=plan))
    if queue is not None:
        case = Case.STARTED if view.pending is None else Case.ADJUSTED
        return Decision(case, (Put(keys.pending, encode(queue)), *rest))
    if view.pending is not None:
        return Decision(Case.RETURNED, (Delete(keys.pending), *rest))
    return Decision(Case.REACHED, rest)
