"""How much of a store's cap the other tables take.

A cap (`maxReplicasPerStore`) is one number for the replicas of all tables, and each table is planned by itself. So a
table that is planned counts what the newest plans of all other tables want of each store; a plan that waits for its
approval takes what it wants and what the plan before it wanted, whichever is more. This is no part of a plan's basis:
a table that fits is not planned again because another one has changed.
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
    """The stores with what other tables take of their caps; nothing is read where none has a cap."""
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
    """What one table takes; a plan that cannot be read is replaced soon, and is counted then."""
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
