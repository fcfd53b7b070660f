"""Orders that bring leaderships to where the plan wants them.

The plan names a preferred leader for each partition; after a store was away, its leaderships are elsewhere. An order is
a key that the leader itself carries out and removes, and that expires: nobody waits for it. Only a few are out at a
time, and only for partitions that are at rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from evenkeel.metastore.api import Compare, Put, Txn, absent, unchanged
from evenkeel.protocol.partition import PartitionView
from evenkeel.protocol.plan import Plan
from evenkeel.protocol.records import LeaderOrder, encode, voters
from evenkeel.reconcile.snapshot import TableSnapshot

__all__ = ["order_leaders"]

AT_ONCE: Final = 16
EXPIRE_SECONDS: Final = 60.0


def order_leaders(snapshot: TableSnapshot, *, now: float, epoch: Compare) -> Iterator[Txn]:
    """One transaction per order that should be out and is not."""
    plan, record = snapshot.plan, snapshot.record
    if plan is None or record is None:
        return
    leaders = snapshot.current(record.partitions).leaders
    usable = {store.name for store in snapshot.stores.live()} & set(snapshot.registered)
    keys, table = snapshot.keys, snapshot.table
    room = AT_ONCE - sum(keys.leader_target(table, p) in snapshot.kvs for p in range(record.partitions))
    for partition, leader in leaders.items():
        if room <= 0:
            return
        wanted = _preferred(snapshot.partition(partition), plan, partition)
        key = keys.leader_target(table, partition)
        if wanted is None or wanted == leader or wanted not in usable or key in snapshot.kvs:
            continue
        order = LeaderOrder(wanted, now + EXPIRE_SECONDS)
        guards = (epoch, absent(key), unchanged(keys.table(table), snapshot.record_kv))
        yield Txn(guards, (Put(key, encode(order)),))
        room -= 1


def _preferred(view: PartitionView, plan: Plan, partition: int) -> str | None:
    """The store that should lead, if the partition is at rest and the store votes."""
    if view.stable is None or view.pending is not None or view.planned is not None:
        return None
    wanted = plan.target(partition)[0].store
    return wanted if any(peer.store == wanted for peer in voters(view.stable.peers)) else None
