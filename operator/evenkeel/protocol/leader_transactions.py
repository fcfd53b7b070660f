"""The sidecar's half of the rebalance protocol: its transactions, and when they may be made.

A leader carries out head(pending). Its *token* is pending's mod revision, so a replaced pending is another
change. The lock freezes pending from before the first raft entry that a switch follows until that switch:

    lock      compares pending == token, lock as read             puts {token, own term}, always anew: an own earlier
                                                                  transaction of unknown outcome can then no longer land
    unlock    compares the lock's mod revision                    only when `may_unlock` says so
    switch    compares pending == token of the applied            stable := applied; pending := steps(applied, planned),
              configuration, stable and planned as read           else the rest of the queue, else nothing; planned
                                                                  removed when used; lock removed
    promote   compares stable, pending == token, planned,         pending := steps(stable, planned) or nothing;
              lock absent                                         planned removed
    seed      compares stable, pending, lock absent               stable := applied

All compare the table's record too, and on failure read the keys again in the same round trip.
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
    """Freeze the pending of `view` for the leader of `term`; also over a lock that is already there."""
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
    """Whether a leader may delete this lock: nothing the lock protects can still come into force.

    `final_outstanding` is a lock transaction or a final entry of its own whose outcome is open; `in_joint` and
    `newest_token` describe its newest configuration, in the log or the snapshot, applied or not.
    """
    return (
        committed_in_term
        and lock.term <= term
        and not final_outstanding
        and not in_joint
        and newest_token != lock.token
    )


def unlock_txn(view: PartitionView, *, keys: PartitionKeys, table: Compare) -> Txn:
    """Release exactly the lock that was read."""
    return _txn(keys, table, (_is(keys.lock, view.lock_mod),), (Delete(keys.lock),))


def switch_txn(view: PartitionView, applied: Sequence[Peer], *, keys: PartitionKeys, token: int, table: Compare) -> Txn:
    """Record that raft runs `applied`, which carried out the pending of revision `token`."""
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
    """What is still to do once `applied` is stable; a planned target replaces the rest of the queue."""
    if view.planned is not None:
        return pending_of(applied, view.planned.peers)
    if view.pending is not None and len(view.pending.queue) > 1:
        return Pending(view.pending.queue[1:])
    return None


def promote_txn(view: PartitionView, *, keys: PartitionKeys, table: Compare) -> Txn:
    """Make planned the pending one while nothing of the present change is frozen."""
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
    """Publish what raft runs, where the metastore has nothing of the partition."""
    compares = (_is(keys.stable, 0), _is(keys.pending, 0), _is(keys.lock, 0))
    return _txn(keys, table, compares, (Put(keys.stable, encode(Stable(tuple(sorted(applied))))),))


def _is(key: str, mod_revision: int) -> Compare:
    return Compare(key, "mod", "=", mod_revision)


def _txn(keys: PartitionKeys, table: Compare, compares: tuple[Compare, ...], ops: tuple[Op, ...]) -> Txn:
    return Txn((table, *compares), ops, tuple(Get(key) for key in keys.all()))
