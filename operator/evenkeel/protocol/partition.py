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
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec

from evenkeel.errors import MalformedRecordError
from evenkeel.metastore.api import Compare, Delete, KeyValue, Op, Put
from evenkeel.protocol.keys import PartitionKeys
from evenkeel.protocol.records import (
    Lock,
    Peer,
    Pending,
    Planned,
    Retarget,
    Role,
    Stable,
    TargetPeer,
    decode,
    encode,
    shape,
)
from evenkeel.protocol.steps import assign_ids, pending_of

__all__ = ["Case", "Decision", "PartitionView", "previous", "read_partition", "retarget"]


class PartitionView(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One partition's keys as read at one revision; a mod revision of 0 means absent."""

    stable: Stable | None = None
    stable_mod: int = 0
    pending: Pending | None = None
    pending_mod: int = 0
    planned: Planned | None = None
    planned_mod: int = 0
    trigger: int = 0
    trigger_mod: int = 0
    lock: Lock | None = None
    lock_mod: int = 0

    def mods(self) -> tuple[int, int, int, int, int]:
        """In the order of `PartitionKeys.all()`."""
        return (self.stable_mod, self.pending_mod, self.planned_mod, self.trigger_mod, self.lock_mod)

    def compares(self, keys: PartitionKeys) -> tuple[Compare, ...]:
        """The comparisons that hold as long as nothing of this view has changed."""
        return tuple([Compare(key, "mod", "=", mod) for key, mod in zip(keys.all(), self.mods(), strict=True)])

    def deletable_compares(self, keys: PartitionKeys) -> list[Compare]:
        """Those of the comparisons that a range over many partitions cannot make: what was there may be deleted.

        Stable and trigger go only with the whole table, and then the plan's head does too.
        """
        if not (self.pending_mod or self.planned_mod or self.lock_mod):
            return []
        changing = ((keys.pending, self.pending_mod), (keys.planned, self.planned_mod), (keys.lock, self.lock_mod))
        return [Compare(key, "mod", "=", mod) for key, mod in changing if mod]

    def peers(self) -> Iterator[Peer]:
        """Every peer that stable, pending or planned names."""
        if self.stable is not None:
            yield from self.stable.peers
        if self.pending is not None:
            yield from self.pending.peers()
        if self.planned is not None:
            yield from self.planned.peers


T = TypeVar("T")


_ABSENT = (None, 0)


def read_partition(keys: PartitionKeys, found: Mapping[str, KeyValue]) -> PartitionView:
    """Decode one partition's keys from what a read returned."""

    get = found.get

    def record(key: str, kind: type[T]) -> tuple[T | None, int]:
        if (kv := get(key)) is None:
            return _ABSENT
        return decode(kind, kv.value, key=key), kv.mod_revision

    stable, stable_mod = record(keys.stable, Stable)
    pending, pending_mod = record(keys.pending, Pending)
    planned, planned_mod = record(keys.planned, Planned)
    trigger, trigger_mod = record(keys.trigger, int)
    lock, lock_mod = record(keys.lock, Lock)
    if pending is not None and not all(pending.queue or ((),)):
        raise MalformedRecordError(f"metastore key {keys.pending!r} holds an empty queue or step; delete the key")
    return PartitionView(
        stable=stable,
        stable_mod=stable_mod,
        pending=pending,
        pending_mod=pending_mod,
        planned=planned,
        planned_mod=planned_mod,
        trigger=trigger or 0,
        trigger_mod=trigger_mod,
        lock=lock,
        lock_mod=lock_mod,
    )


def previous(view: PartitionView) -> tuple[Peer, ...]:
    """What a new plan starts from: the last thing that was asked for."""
    if view.planned is not None:
        return view.planned.peers
    if view.pending is not None:
        return view.pending.last
    return view.stable.peers if view.stable is not None else ()


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
