"""Counts how much of each store's cap the other tables use.

A cap (`maxReplicasPerStore`) limits the replicas of all tables together, but each table is planned separately. So a
table's planning counts the targets of the newest plans of all other tables. For a plan that awaits approval it counts
the larger of that plan and the one before. The count is not part of a plan's basis: a table that fits is not planned
again because another table has changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from evenkeel.errors import MalformedRecordError
from evenkeel.metastore.metastore_api import KeyValue
from evenkeel.model.views import StoresView
from evenkeel.protocol.keys import Keys
from evenkeel.protocol.records import PlanHead, PlanSlice, PlanState, decode
from evenkeel.reconcile.reconcile_requests import Found, Read, Requests

__all__ = ["count_others"]


def count_others(stores: StoresView, *, keys: Keys, table: str) -> Requests[StoresView]:
    """Return the stores with the other tables' usage of their caps; read nothing if no store has a cap."""
    if all(store.capacity is None for store in stores.stores):
        return stores
    found: Found = yield Read((keys.all_plans(),))
    used = _used_by_others(found.kvs, keys, table)
    return StoresView.of(
        *(
            store if store.capacity is None else msgspec.structs.replace(store, used_by_others=used[store.name])
            for store in stores.stores
        )
    )


def _used_by_others(kvs: Mapping[str, KeyValue], keys: Keys, table: str) -> Counter[str]:
    by_plan: dict[str, list[KeyValue]] = {}
    for key, kv in kvs.items():
        by_plan.setdefault(key.rpartition("/")[0], []).append(kv)
    others = {key.removeprefix(keys.all_plans()).partition("/")[0] for key in kvs} - {table}
    used: Counter[str] = Counter()
    for other in others:
        head = kvs.get(keys.plan_head(other))
        if head is not None:
            used += _used_by(head, by_plan, keys, other)
    return used


def _used_by(head: KeyValue, by_plan: Mapping[str, list[KeyValue]], keys: Keys, table: str) -> Counter[str]:
    """Return one table's usage by store; an unreadable plan counts nothing, as it is replaced soon."""
    try:
        record = decode(PlanHead, head.value, key=head.key)
        numbers = (record.n, record.n - 1) if record.state is PlanState.AWAITING_APPROVAL else (record.n,)
        plans = (by_plan.get(keys.plan_slices(table, n).removesuffix("/"), ()) for n in numbers)
        wanted = [_wanted(slices) for slices in plans]
    except MalformedRecordError:
        return Counter()
    most: Counter[str] = Counter()
    for counter in wanted:
        most |= counter
    return most


def _wanted(slices: Iterable[KeyValue]) -> Counter[str]:
    found: Counter[str] = Counter()
    for kv in slices:
        piece = decode(PlanSlice, kv.value, key=kv.key)
        taken = Counter(at for row in piece.rows for at in row)
        found.update({store: taken[at] for at, (store, _) in enumerate(piece.stores)})
    return found
