"""What is decided about stores: which are lost, which are given up, which are being emptied; and what overrides say.

A store is known by its lease. When the lease ends the store is *lost since* that moment; only after a table's
`lostAfter` are its replicas of that table made anew elsewhere, for copying is dear and most stores come back. When more
than a third of the stores vanish together, or when nobody looked for a while (the operator or etcd was away), it is
more likely that the looking failed than the stores: for all that were not given up yet the delay starts anew, once.

Every input of a plan is a key, so these decisions are keys, `stores.state/<s>`, and the clock has its say only here.
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

__all__ = [
    "DRAIN_ANNOTATION",
    "StoreWish",
    "asked_to_drain",
    "judge_stores",
    "leaving",
    "next_judgement",
    "publish_settings",
]

DRAIN_ANNOTATION: Final = "evenkeel.dev/drain"
"""On a StoreCluster: names of stores to be emptied, separated by commas."""
TOGETHER_SECONDS: Final = 60.0
"""Stores that are lost within such a time are lost together."""


class StoreWish(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """What users want of the stores."""

    cluster: StoreCluster | None = None
    holders: Collection[str] = ()
    """Stores that hold or will hold a replica."""
    lost_after: Mapping[str, float] = {}
    """Seconds, by table."""

    @cached_property
    def _overrides(self) -> dict[str, StoreOverride]:
        return self.cluster.overrides() if self.cluster is not None else {}

    @cached_property
    def _asked_to_drain(self) -> frozenset[str]:
        return asked_to_drain(self.cluster)

    def draining(self, name: str) -> bool:
        """Whether the store is to be emptied."""
        return name in self._asked_to_drain or bool(leaving(self.cluster, (name,)))

    def forgets(self, name: str) -> bool:
        """Whether a store that is away is gone on purpose, and holds nothing."""
        return name not in self.holders and bool(leaving(self.cluster, (name,)))

    def overridden(self, name: str, record: StoreRecord) -> StoreRecord:
        """The store's record with the StoreCluster's word laid over it."""
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
    """Stores that somebody wants to be emptied."""
    if cluster is None:
        return frozenset()
    return frozenset(filter(None, cluster.metadata.annotations.get(DRAIN_ANNOTATION, "").split(",")))


def leaving(cluster: StoreCluster | None, known: Iterable[str]) -> frozenset[str]:
    """Stores beyond the wanted number: the last ones go."""
    if cluster is None:
        return frozenset()
    prefix, wanted = f"{cluster.metadata.name}-", cluster.spec.stores
    ordinals = {name: name.removeprefix(prefix) for name in known if name.startswith(prefix)}
    return frozenset(name for name, at in ordinals.items() if at.isdecimal() and int(at) >= wanted)


def publish_settings(cluster: StoreCluster, before: KeyValue | None, *, keys: Keys, epoch: Compare) -> Txn | None:
    """The transaction that brings the key `settings` up to date; None where it is."""
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


def judge_stores(
    known: KnownStores, desired: StoreWish, *, keys: Keys, now: float, anew: bool, epoch: Compare
) -> Iterator[Txn]:
    """The transactions that bring `stores.state/` up to date, one per store; `anew` lets delays start again."""
    by_key = known.kvs
    anew = anew or _vanished_together(known, now)
    for name in sorted(known.names):
        before = known.states.get(name)
        after = _judge(name, known, desired, now=now, anew=anew)
        if after == before:
            continue
        key = keys.store_state(name)
        op: Op = Put(key, encode(after)) if after is not None else Delete(key)
        own = (unchanged(key, by_key.get(key)), unchanged(keys.store(name), by_key.get(keys.store(name))))
        yield Txn((epoch, *own), (op,))


def _vanished_together(known: KnownStores, now: float) -> bool:
    """Whether stores are lost at this moment that are, with those lost just before, more than a third of all."""
    missed = {name: known.states[name] for name in known.lost if not _settled(known.states[name])}
    if all(state.lost_since is not None for state in missed.values()):
        return False
    recent = [s for s in missed.values() if s.lost_since is None or now - s.lost_since <= TOGETHER_SECONDS]
    return 3 * len(recent) > len(known.registered.keys() | missed.keys())


def _settled(state: StoreState) -> bool:
    """Whether the loss has been acted upon already."""
    return bool(state.replace_in)


def _judge(name: str, known: KnownStores, desired: StoreWish, *, now: float, anew: bool) -> StoreState | None:
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
    return _judge_lost(name, state, desired, now=now, anew=anew)


def _judge_lost(name: str, state: StoreState, desired: StoreWish, *, now: float, anew: bool) -> StoreState:
    waited_for = any(not state.given_up(table) for table in desired.lost_after)
    since = now if state.lost_since is None or (anew and waited_for) else state.lost_since
    up = {table for table, seconds in desired.lost_after.items() if now - since >= seconds}
    still = up | (set(state.replace_in) & desired.lost_after.keys())
    return msgspec.structs.replace(
        state, lost_since=since, replace_in=tuple(sorted(still)), draining=desired.draining(name)
    )


def next_judgement(known: KnownStores, desired: StoreWish) -> float | None:
    """When time alone will change something next."""
    lost = (known.states[name] for name in known.lost)
    waiting = [
        state.lost_since + seconds
        for state in lost
        if state.lost_since is not None
        for table, seconds in desired.lost_after.items()
        if not state.given_up(table)
    ]
    return min(waiting, default=None)
