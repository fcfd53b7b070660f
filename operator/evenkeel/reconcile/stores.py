"""What is decided about stores: which are lost, which are to be replaced, which are being emptied.

A store is known by its lease. When the lease ends the store is *lost since* that moment; only after the table's
`lostAfter` are its replicas made anew elsewhere, for copying is dear and most stores come back. When more than a third
of the stores are lost together, or when nobody looked for a while (the operator or etcd was away), it is more likely
that the looking failed than the stores: the delay starts anew.

Every input of a plan is a key, so these decisions are keys, `stores.state/<s>`, and the clock has its say only here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

import msgspec

from evenkeel.metastore.api import Compare, Delete, KeyValue, Op, Put, Txn, unchanged
from evenkeel.model.storecluster import StoreCluster
from evenkeel.protocol.keys import Keys
from evenkeel.protocol.records import StoreRecord, StoreState, decode, encode

__all__ = ["DRAIN_ANNOTATION", "StoreWish", "judge_stores", "leaving", "next_judgement", "read_stores", "store_wish"]

DRAIN_ANNOTATION = "evenkeel.dev/drain"
"""On a StoreCluster: names of stores to be emptied, separated by commas."""


class StoreWish(msgspec.Struct, frozen=True, kw_only=True):
    """What users want of the stores."""

    draining: frozenset[str] = frozenset()
    """Stores to be emptied."""
    forgotten: frozenset[str] = frozenset()
    """Stores that are gone on purpose and hold nothing any more."""
    lost_after: float = 600.0
    """Seconds; the shortest of the tables'."""


def store_wish(
    cluster: StoreCluster | None, known: Iterable[str], *, holders: Collection[str], lost_after: float
) -> StoreWish:
    """What the StoreCluster asks for; `holders` are the stores that hold or will hold a replica."""
    if cluster is None:
        return StoreWish(lost_after=lost_after)
    going = leaving(cluster, known)
    asked = cluster.metadata.annotations.get(DRAIN_ANNOTATION, "").split(",")
    return StoreWish(
        draining=going | frozenset(filter(None, asked)),
        forgotten=frozenset(name for name in going if name not in holders),
        lost_after=lost_after,
    )


def leaving(cluster: StoreCluster, known: Iterable[str]) -> frozenset[str]:
    """Stores beyond the wanted number: the last ones go."""
    prefix = f"{cluster.metadata.name}-"
    ordinals = {name: name.removeprefix(prefix) for name in known if name.startswith(prefix)}
    return frozenset(name for name, at in ordinals.items() if at.isdecimal() and int(at) >= cluster.spec.stores)


def judge_stores(
    kvs: Mapping[str, KeyValue], wish: StoreWish, *, keys: Keys, now: float, anew: bool, epoch: Compare
) -> Iterator[Txn]:
    """The transactions that bring `stores.state/` up to date, one per store; `anew` lets delays start again.

    `kvs` holds everything under `stores`, of one revision.
    """
    registered, states = read_stores(kvs, keys)
    lost = {name for name in states if name not in registered and name not in wish.forgotten}
    anew = anew or 3 * len(lost) > len(states.keys() | registered.keys())
    for name in sorted(states.keys() | registered.keys()):
        key = keys.store_state(name)
        before = states.get(name)
        after = _judge(name, registered.get(name), before, wish, now=now, anew=anew)
        if after == before:
            continue
        op: Op = Put(key, encode(after)) if after is not None else Delete(key)
        yield Txn((epoch, unchanged(key, kvs.get(key)), unchanged(keys.store(name), kvs.get(keys.store(name)))), (op,))


def _judge(
    name: str, record: StoreRecord | None, state: StoreState | None, wish: StoreWish, *, now: float, anew: bool
) -> StoreState | None:
    if name in wish.forgotten and record is None:
        return None
    if record is not None:
        maintenance = state is not None and state.maintenance and state.volume == record.volume
        return StoreState(volume=record.volume, draining=name in wish.draining, maintenance=maintenance, record=record)
    assert state is not None
    since = now if state.lost_since is None or (anew and not state.replace) else state.lost_since
    return msgspec.structs.replace(
        state,
        lost_since=since,
        replace=state.replace or now - since >= wish.lost_after,
        draining=name in wish.draining,
    )


def next_judgement(kvs: Mapping[str, KeyValue], wish: StoreWish, *, keys: Keys) -> float | None:
    """When time alone will change something next."""
    registered, states = read_stores(kvs, keys)
    waiting = [
        state.lost_since + wish.lost_after
        for name, state in states.items()
        if name not in registered and state.lost_since is not None and not state.replace
    ]
    return min(waiting, default=None)


def read_stores(kvs: Mapping[str, KeyValue], keys: Keys) -> tuple[dict[str, StoreRecord], dict[str, StoreState]]:
    """Stores that are registered, and what was decided about stores, by name."""
    registered, states = {}, {}
    for key, kv in kvs.items():
        if key.startswith(keys.stores()):
            registered[key.removeprefix(keys.stores())] = decode(StoreRecord, kv.value, key=key)
        elif key.startswith(keys.store_states()):
            states[key.removeprefix(keys.store_states())] = decode(StoreState, kv.value, key=key)
    return registered, states
