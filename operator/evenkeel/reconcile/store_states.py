"""Decides the state of each store: lost, replaced, draining, and its record with the StoreCluster's overrides.

Every input of a plan is a key, so the decisions are keys, `stores.state/<s>`. Only these decisions depend on time.
When a lost store's replicas are replaced is decided in `lost_stores`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Final

import msgspec

from evenkeel.metastore.metastore_api import Compare, Delete, KeyValue, Op, Put, Txn, unchanged
from evenkeel.model.storecluster import StoreCluster, StoreOverride
from evenkeel.model.views import StoreView
from evenkeel.protocol.keys import Keys
from evenkeel.protocol.records import StoreRecord, StoreSettings, StoreState, encode
from evenkeel.reconcile.known_stores import KnownStores
from evenkeel.reconcile.lost_stores import decide_replacement, lost_together

__all__ = [
    "DRAIN_ANNOTATION",
    "DesiredStores",
    "asked_to_drain",
    "decide_store_states",
    "leaving",
    "publish_settings",
]

DRAIN_ANNOTATION: Final = "evenkeel.dev/drain"
"""On a StoreCluster: names of stores to drain, separated by commas."""


class DesiredStores(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """What users ask of the stores."""

    cluster: StoreCluster | None = None
    holders: Collection[str] = ()
    """Stores that hold or will hold a replica."""
    lost_after: Mapping[str, float] = {}
    """By table, for how many seconds a store may be lost before its replicas are replaced."""

    @cached_property
    def _overrides(self) -> dict[str, StoreOverride]:
        return self.cluster.overrides() if self.cluster is not None else {}

    @cached_property
    def _asked_to_drain(self) -> frozenset[str]:
        return asked_to_drain(self.cluster)

    def draining(self, name: str) -> bool:
        """Whether the store has to drain."""
        return name in self._asked_to_drain or bool(leaving(self.cluster, (name,)))

    def forgets(self, name: str) -> bool:
        """Whether a lost store was removed on purpose and holds no replica."""
        return name not in self.holders and bool(leaving(self.cluster, (name,)))

    def overridden(self, name: str, record: StoreRecord) -> StoreRecord:
        """Return the store's record with the StoreCluster's overrides."""
        if self.cluster is None:
            return record
        announced = StoreView(
            name=name, zone=record.zone, weight=record.weight, capacity=record.capacity, labels=record.labels
        )
        view = self.cluster.with_overrides(announced, self._overrides)
        return msgspec.structs.replace(
            record, zone=view.zone, weight=view.weight, capacity=view.capacity, labels=dict(view.labels)
        )


def asked_to_drain(cluster: StoreCluster | None) -> frozenset[str]:
    """Return the stores that the drain annotation names."""
    if cluster is None:
        return frozenset()
    return frozenset(filter(None, cluster.metadata.annotations.get(DRAIN_ANNOTATION, "").split(",")))


def leaving(cluster: StoreCluster | None, known: Iterable[str]) -> frozenset[str]:
    """Return the stores whose ordinals are not below `spec.stores`: these are scaled away."""
    if cluster is None:
        return frozenset()
    prefix, wanted = f"{cluster.metadata.name}-", cluster.spec.stores
    ordinals = {name: name.removeprefix(prefix) for name in known if name.startswith(prefix)}
    return frozenset(name for name, at in ordinals.items() if at.isdecimal() and int(at) >= wanted)


def publish_settings(cluster: StoreCluster, before: KeyValue | None, *, keys: Keys, epoch: Compare) -> Txn | None:
    """Return the transaction that updates the key `settings`; None if it is up to date."""
    rate, handling = cluster.spec.throttles.bytes_per_second, cluster.spec.failure_handling
    wanted = encode(
        StoreSettings(
            bytes_per_second=None if rate is None else float(rate.units),
            snapshots_at_once=cluster.spec.throttles.max_concurrent_moves,
            degraded_after=handling.retries_before_degraded,
            longest_retry_seconds=handling.longest_retry.seconds,
            stalled_seconds=handling.stalled_after.seconds,
            step_down_when_stalled=handling.step_down_when_stalled,
        )
    )
    if before is not None and before.value == wanted:
        return None
    return Txn((epoch, unchanged(keys.settings, before)), (Put(keys.settings, wanted),))


def decide_store_states(
    known: KnownStores, desired: DesiredStores, *, keys: Keys, now: float, restart_delays: bool, epoch: Compare
) -> Iterator[Txn]:
    """Yield the transactions that update `stores.state/`, one per store.

    `restart_delays` restarts the delays of lost stores, because the stores were not checked for a while.
    """
    by_key = known.kvs
    restart_delays = restart_delays or lost_together(known, now)
    for name in sorted(known.names):
        before = known.states.get(name)
        after = _decide(name, known, desired, now=now, restart_delays=restart_delays)
        if after == before:
            continue
        key = keys.store_state(name)
        op: Op = Put(key, encode(after)) if after is not None else Delete(key)
        own = (unchanged(key, by_key.get(key)), unchanged(keys.store(name), by_key.get(keys.store(name))))
        yield Txn((epoch, *own), (op,))


def _decide(
    name: str, known: KnownStores, desired: DesiredStores, *, now: float, restart_delays: bool
) -> StoreState | None:
    """Return the state that a store should have; None if the store should be forgotten."""
    record, state = known.registered.get(name), known.states.get(name)
    if record is not None:
        maintenance = state is not None and state.maintenance and state.volume == record.volume
        return StoreState(
            volume=record.volume,
            draining=desired.draining(name),
            maintenance=maintenance,
            record=desired.overridden(name, record),
        )
    assert state is not None
    if name not in known.lost:
        return state
    if desired.forgets(name):
        return None
    lost = decide_replacement(state, desired.lost_after, now=now, restart_delay=restart_delays)
    return msgspec.structs.replace(lost, draining=desired.draining(name))
