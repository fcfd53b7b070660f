"""The leader's metastore transactions and their preconditions.

A leader applies head(pending). The *change token* is pending's mod revision, so a replaced pending is another
change. The lock freezes pending from before the final raft entry is logged until the switch:

    transaction  compares                                       writes
    lock         pending == token, lock as read                 lock = {token, own term}; it is always written again,
                                                                so an earlier one of unknown outcome can no longer land
    unlock       lock as read                                   removes the lock, only if `may_unlock`
    switch       pending == token of the applied                stable = applied; pending = steps(applied, planned),
                 configuration, stable and planned as read      else the rest of the queue, else removed; removes
                                                                planned and the lock
    promote      stable, pending and planned as read,           pending = steps(stable, planned), or removed if there
                 lock absent                                    are none; removes planned
    seed         stable, pending and lock absent                stable = applied

All compare the table's record too. On failure they read the keys again in the same round trip.
"""

from __future__ import annotations

from collections.abc import Sequence

from evenkeel.metastore.metastore_api import Compare, Delete, Get, Op, Put, Txn
from evenkeel.protocol.change_steps import pending_of
from evenkeel.protocol.keys import PartitionKeys
from evenkeel.protocol.partition_view import PartitionView
from evenkeel.protocol.records import Lock, Peer, Pending, Stable, encode

__all__ = ["lock_txn", "may_unlock", "promote_txn", "seed_txn", "switch_txn", "unlock_txn"]


def lock_txn(view: PartitionView, *, keys: PartitionKeys, term: int, table: Compare) -> Txn:
    """Freeze the pending of `view` for the leader of `term`; replace an existing lock."""
    return _txn(
        keys,
        table,
        (_is(keys.pending, view.pending_mod), _is(keys.lock, view.lock_mod)),
        (Put(keys.lock, encode(Lock(token=view.pending_mod, term=term))),),
    )


def may_unlock(
    lock: Lock,
    *,
    term: int,
    committed_in_term: bool,
    final_outstanding: bool,
    in_joint: bool,
    newest_token: int,
) -> bool:
    """Whether a leader may delete this lock: no change that the lock protects can still take effect.

    `final_outstanding`: the outcome of a lock transaction or final entry of this leader is unknown. `in_joint` and
    `newest_token` describe the newest configuration in its log or snapshot, applied or not.
    """
    return (
        committed_in_term
        and lock.term <= term
        and not final_outstanding
        and not in_joint
        and newest_token != lock.token
    )


def unlock_txn(view: PartitionView, *, keys: PartitionKeys, table: Compare) -> Txn:
    """Remove the lock, if it is still the one that was read."""
    return _txn(keys, table, (_is(keys.lock, view.lock_mod),), (Delete(keys.lock),))


def switch_txn(view: PartitionView, applied: Sequence[Peer], *, keys: PartitionKeys, token: int, table: Compare) -> Txn:
    """Record `applied` as stable; it completed the change with this change token."""
    compares = (
        _is(keys.pending, token),
        _is(keys.stable, view.stable_mod),
        _is(keys.planned, view.planned_mod),
    )
    ops: list[Op] = [Put(keys.stable, encode(Stable(tuple(sorted(applied)))))]
    rest = _after_switch(view, applied)
    ops.append(Put(keys.pending, encode(rest)) if rest is not None else Delete(keys.pending))
    if view.planned is not None:
        ops.append(Delete(keys.planned))
    ops.append(Delete(keys.lock))
    return _txn(keys, table, compares, tuple(ops))


def _after_switch(view: PartitionView, applied: Sequence[Peer]) -> Pending | None:
    """Return the next pending once `applied` is stable; a planned target replaces the rest of the queue."""
    if view.planned is not None:
        return pending_of(applied, view.planned.peers)
    if view.pending is not None and len(view.pending.queue) > 1:
        return Pending(view.pending.queue[1:])
    return None


def promote_txn(view: PartitionView, *, keys: PartitionKeys, table: Compare) -> Txn:
    """Replace pending by planned while pending is not locked."""
    assert view.stable is not None
    assert view.planned is not None
    compares = (
        _is(keys.stable, view.stable_mod),
        _is(keys.pending, view.pending_mod),
        _is(keys.planned, view.planned_mod),
        _is(keys.lock, 0),
    )
    queue = pending_of(view.stable.peers, view.planned.peers)
    pending: Op = Put(keys.pending, encode(queue)) if queue is not None else Delete(keys.pending)
    return _txn(keys, table, compares, (pending, Delete(keys.planned)))


def seed_txn(applied: Sequence[Peer], *, keys: PartitionKeys, table: Compare) -> Txn:
    """Record what raft runs as stable, for a partition without keys in the metastore."""
    compares = (_is(keys.stable, 0), _is(keys.pending, 0), _is(keys.lock, 0))
    return _txn(keys, table, compares, (Put(keys.stable, encode(Stable(tuple(sorted(applied))))),))


def _is(key: str, mod_revision: int) -> Compare:
    return Compare(key, "mod", "=", mod_revision)


def _txn(keys: PartitionKeys, table: Compare, compares: tuple[Compare, ...], ops: tuple[Op, ...]) -> Txn:
    return Txn((table, *compares), ops, tuple(Get(key) for key in keys.all()))
