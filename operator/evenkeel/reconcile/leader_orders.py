"""Orders that bring leaderships to where the plan, or a user, wants them.

The plan names a preferred leader for each partition; after a store was away, its leaderships are elsewhere. An order is
a key that the leader itself carries out and removes, and that expires: nobody waits for it. Only a few are out at a
time, and only for partitions that are at rest. A user's word on single partitions is an annotation of the Table, and
goes before the plan's for as long as it stands there.
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

__all__ = ["LEADERS_ANNOTATION", "chosen_leaders", "order_leaders", "parse_leaders", "spell_leaders"]

LEADERS_ANNOTATION: Final = "evenkeel.dev/leaders"
"""On a Table: who should lead single partitions, as in `3=main-2,7=main-0`."""
AT_ONCE: Final = 16
EXPIRE_SECONDS: Final = 60.0


def chosen_leaders(table: Table) -> dict[int, str]:
    """Who should lead partitions of a table, by its annotation."""
    return parse_leaders(table.metadata.annotations.get(LEADERS_ANNOTATION, ""))


def parse_leaders(text: str) -> dict[int, str]:
    """What an annotation says; whatever is no partition and store is passed over."""
    pairs = (pair.partition("=") for pair in text.split(","))
    return {int(number): store.strip() for number, _, store in pairs if number.strip().isdecimal() and store.strip()}


def spell_leaders(chosen: Mapping[int, str]) -> str:
    """The annotation that says this."""
    return ",".join(f"{partition}={store}" for partition, store in sorted(chosen.items()))


def order_leaders(snapshot: TableSnapshot, chosen: Mapping[int, str], *, now: float, epoch: Compare) -> Iterator[Txn]:
    """One transaction per order that should be out and is not, or that nobody was there to remove."""
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
    """Whether the partition's leader, if there is one, should have removed the order long ago."""
    try:
        return decode(LeaderOrder, kv.value, key=kv.key).expires + EXPIRE_SECONDS <= now
    except MalformedRecordError:
        return True


def _preferred(view: PartitionView, plan: Plan, partition: int, chosen: Mapping[int, str]) -> str | None:
    """The store that should lead, if the partition is at rest and the store votes."""
    if view.stable is None or view.pending is not None or view.planned is not None:
        return None
    voting = {peer.store for peer in voters(view.stable.peers)}
    approved = plan.head.state is not PlanState.AWAITING_APPROVAL
    wishes = (chosen.get(partition), plan.target(partition)[0].store if approved else None)
    return next((wanted for wanted in wishes if wanted in voting), None)
