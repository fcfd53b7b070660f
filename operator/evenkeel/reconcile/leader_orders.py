"""Orders that hand leaderships over to the stores that the plan or a user prefers.

The plan names a preferred leader for each partition; when a store was unavailable, others lead its partitions. An order
is a key that the current leader carries out and removes. It expires, and nothing waits for it. Only a few orders exist
at a time, and only for partitions that are not moving. An annotation of the Table chooses leaders of single partitions
and takes precedence over the plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from evenkeel.errors import MalformedRecordError
from evenkeel.metastore.metastore_api import Compare, Delete, KeyValue, Put, Txn, absent, unchanged
from evenkeel.model.table import Table
from evenkeel.protocol.partition_view import PartitionView
from evenkeel.protocol.records import LeaderOrder, PlanState, decode, encode, voters
from evenkeel.protocol.stored_plan import Plan
from evenkeel.reconcile.table_snapshot import TableSnapshot

__all__ = ["LEADERS_ANNOTATION", "chosen_leaders", "format_leaders", "order_leaders", "parse_leaders"]

LEADERS_ANNOTATION: Final = "evenkeel.dev/leaders"
"""On a Table: the leaders of single partitions, such as `3=main-2,7=main-0`."""
AT_ONCE: Final = 16
EXPIRE_SECONDS: Final = 60.0


def chosen_leaders(table: Table) -> dict[int, str]:
    """Return the leaders that a table's annotation chooses, by partition."""
    return parse_leaders(table.metadata.annotations.get(LEADERS_ANNOTATION, ""))


def parse_leaders(text: str) -> dict[int, str]:
    """Parse the annotation; ignore entries that are not a partition and a store."""
    pairs = (pair.partition("=") for pair in text.split(","))
    return {int(number): store.strip() for number, _, store in pairs if number.strip().isdecimal() and store.strip()}


def format_leaders(chosen: Mapping[int, str]) -> str:
    """Return the annotation's text."""
    return ",".join(f"{partition}={store}" for partition, store in sorted(chosen.items()))


def order_leaders(snapshot: TableSnapshot, chosen: Mapping[int, str], *, now: float, epoch: Compare) -> Iterator[Txn]:
    """Yield a transaction for each order to write, and for each overdue order to remove."""
    plan, record = snapshot.plan, snapshot.record
    if plan is None or record is None:
        return
    leaders = snapshot.current(record.partitions).leaders
    usable = ({store.name for store in snapshot.stores.live()} & set(snapshot.registered)) - snapshot.handing_over
    keys, table = snapshot.keys, snapshot.table
    room = AT_ONCE
    for partition in range(record.partitions):
        kv = snapshot.kvs.get(keys.leader_target(table, partition))
        if kv is None:
            continue
        room -= 1
        if _overdue(kv, now):
            yield Txn((epoch, unchanged(kv.key, kv)), (Delete(kv.key),))
    for partition, leader in leaders.items():
        wanted = _preferred(snapshot.partition(partition), plan, partition, chosen)
        key = keys.leader_target(table, partition)
        if room <= 0 or wanted is None or wanted == leader or wanted not in usable or key in snapshot.kvs:
            continue
        order = LeaderOrder(wanted, now + EXPIRE_SECONDS, EXPIRE_SECONDS)
        guards = (epoch, absent(key), unchanged(keys.table(table), snapshot.record_kv))
        yield Txn(guards, (Put(key, encode(order)),))
        room -= 1


def _overdue(kv: KeyValue, now: float) -> bool:
    """Whether the leader should have removed the order long ago; the partition may have no leader."""
    try:
        return decode(LeaderOrder, kv.value, key=kv.key).expires + EXPIRE_SECONDS <= now
    except MalformedRecordError:
        return True


def _preferred(view: PartitionView, plan: Plan, partition: int, chosen: Mapping[int, str]) -> str | None:
    """Return the store that should lead, if the partition is not moving and the store is a voter."""
    if view.stable is None or view.pending is not None or view.planned is not None:
        return None
    voting = {peer.store for peer in voters(view.stable.peers)}
    approved = plan.head.state is not PlanState.AWAITING_APPROVAL
    preferred = (chosen.get(partition), plan.target(partition)[0].store if approved else None)
    return next((store for store in preferred if store in voting), None)
