"""Stores beyond the desired number: when their pods and volumes may go."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import pytest

from evenkeel.metastore.metastore_api import KeyValue
from evenkeel.model.storecluster import StoreCluster
from evenkeel.protocol.keys import Keys
from evenkeel.protocol.records import Peer, Stable, StoreLoad, StoreRecord, StoreState, encode
from evenkeel_operator.reconcilers.surplus_stores import SurplusStores, idle_stores
from tests.kube_operator.support import store_cluster

KEYS = Keys(namespace="shop", store_cluster="main")


def state(number: int, *, draining: bool) -> KeyValue:
    record = StoreState(volume=f"v{number}", draining=draining, record=StoreRecord(volume=f"v{number}"))
    return KeyValue(KEYS.store_state(f"main-{number}"), encode(record), 1, 1, 1)


def stable(*numbers: int) -> KeyValue:
    peers = tuple(Peer(f"main-{number}", f"v{number}", 1) for number in numbers)
    return KeyValue(KEYS.partition("t.1", 0).stable, encode(Stable(peers)), 1, 1, 1)


def surplus(
    cluster: StoreCluster, highest: int, stores: Iterable[KeyValue], *named: KeyValue, loads: Iterable[KeyValue] = ()
) -> SurplusStores:
    return SurplusStores(
        cluster=cluster,
        highest=highest,
        keys=KEYS,
        stores={kv.key: kv for kv in stores},
        named=tuple(kv.value for kv in named),
        loads={kv.key: kv for kv in loads},
    )


@pytest.mark.parametrize(
    ("draining", "held", "expected"),
    [
        ({3, 4}, (0, 1, 2), 3),
        ({3, 4}, (0, 1, 4), 5),
        ({3, 4}, (0, 1, 3), 4),
        ({4}, (0, 1, 2), 4),
        (set(), (0, 1, 2), 5),
    ],
    ids=["both are empty", "the last is not", "the first is not", "one is not drained yet", "none is drained yet"],
)
def test_pods_go_when_they_hold_nothing(draining: set[int], held: tuple[int, ...], expected: int) -> None:
    """From the last one down, and only drained ones: a plan might still name the others."""
    known = [state(number, draining=number in draining) for number in range(5)]
    assert surplus(store_cluster(), 5, known, stable(*held)).to_run() == expected


def test_a_store_that_never_started_can_go() -> None:
    """It has no record, so it holds nothing."""
    found = surplus(store_cluster(), 5, [])
    assert found.to_run() == 3
    assert found.emptied(3) == {}, "its volume stays, because the metastore may be a new one"


def test_a_pod_stays_until_its_store_has_deleted_its_replicas() -> None:
    """No partition names it, but it still reports a replica."""
    load = StoreLoad(replicas=1, leading=0, log_bytes=0, bytes_per_second=0)
    states = [state(number, draining=True) for number in (3, 4)]
    reported = KeyValue(KEYS.load("main-4"), encode(load), 1, 1, 1)
    found = surplus(store_cluster(), 5, states, loads=[reported])
    assert found.to_run() == 5
    gone = KeyValue(KEYS.load("main-4"), encode(msgspec.structs.replace(load, replicas=0)), 1, 1, 1)
    found = surplus(store_cluster(), 5, states, loads=[gone])
    assert (found.to_run(), found.emptied(3)) == (3, {3: "v3", 4: "v4"})


def test_unavailable_stores_that_hold_nothing() -> None:
    """A store that a partition names, now or planned, holds something; `main-1` is not `main-10`."""
    assert idle_stores(["main-0", "main-1", "main-3"], [stable(1, 2), stable(30)]) == ["main-0", "main-3"]
    assert idle_stores([], [stable(1)]) == []


def test_similar_names_are_distinguished() -> None:
    """`main-1` is not `main-10`."""
    cluster = store_cluster(stores=1)
    known = [state(1, draining=True)]
    other = KeyValue(KEYS.partition("t.1", 0).stable, encode(Stable((Peer("main-10", "v", 1),))), 1, 1, 1)
    assert surplus(cluster, 2, known, other).to_run() == 1
