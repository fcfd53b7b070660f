"""What users see of a StoreCluster."""

from __future__ import annotations

from typing import Any

import pytest

from evenkeel.metastore.api import KeyValue
from evenkeel.model.conditions import Reason
from evenkeel.model.storecluster import StoreCluster, StoreClusterStatus
from evenkeel.protocol.records import StoreLoad, StoreRecord, StoreState, encode
from evenkeel.reconcile.cluster_status import cluster_status, troubled_cluster_status
from evenkeel.reconcile.known import read_stores
from evenkeel.reconcile.partitions import Trouble
from tests.reconcile.support import KEYS, conditions, message, store_cluster

FIRST, LATER = "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z"
WELL = {
    "Ready": ("True", "AsExpected"),
    "Progressing": ("False", "AsExpected"),
    "Degraded": ("False", "AsExpected"),
}


def keys(
    *there: str, lost: tuple[str, ...] = (), damaged: tuple[str, ...] = (), **states: StoreState
) -> list[KeyValue]:
    """Everything under `stores`: those that are there, those that are lost, and states by `s_1=...`."""
    values: dict[str, bytes] = {}
    for name in (*there, *lost):
        values[KEYS.store_state(name)] = encode(StoreState(volume="v"))
    for name in there:
        values[KEYS.store(name)] = encode(StoreRecord(volume="v"))
    for name in damaged:
        values[KEYS.store(name)] = b"nonsense"
    for name, state in states.items():
        values[KEYS.store_state(name.replace("_", "-"))] = encode(state)
    return [KeyValue(key, value, 1, 1, 1) for key, value in values.items()]


def look(cluster: StoreCluster, kvs: list[KeyValue], *, now: str = FIRST, **known: Any) -> StoreClusterStatus:
    stores = read_stores(kvs, KEYS)
    return cluster_status(cluster, stores, **{"loads": {}, "held": {}, "tables": 2, **known}, now=now)


def seen(cluster: StoreCluster, status: StoreClusterStatus) -> StoreCluster:
    return cluster.model_copy(update={"status": status})


def test_all_is_well() -> None:
    """As many stores as wanted are registered; looking later changes nothing."""
    loads = {"s-0": StoreLoad(replicas=5, leading=1, log_bytes=0, bytes_per_second=0)}
    cluster, kvs = store_cluster(3, generation=4), keys("s-0", "s-1", "s-2")
    status = look(cluster, kvs, loads=loads)
    assert conditions(status) == WELL
    assert (status.stores, status.ready_stores, status.tables, status.replicas) == (3, 3, 2, 5)
    assert (status.lost, status.drains, status.observed_generation) == ((), (), 4)
    assert look(seen(cluster, status), kvs, loads=loads, now=LATER) == status


def test_stores_that_are_lost() -> None:
    """They are named, and so are those whose replicas are made anew; times tell since when."""
    cluster = store_cluster(3)
    status = look(cluster, keys("s-0", "s-1", "s-2"))
    gone = StoreState(volume="v", lost_since=1.0, replace_in=("orders.1",))
    status = look(seen(cluster, status), keys("s-0", lost=("s-1",), s_2=gone), now=LATER)
    assert conditions(status) == WELL | {"Ready": ("False", "StoresNotReady"), "Degraded": ("True", "StoresLost")}
    assert (status.stores, status.ready_stores, status.lost) == (3, 1, ("s-1", "s-2"))
    assert message(status, "Degraded") == "lost: s-1, s-2; replicas of s-2 are made anew elsewhere"
    assert {entry.type: entry.last_transition_time for entry in status.conditions}["Progressing"] == FIRST


def test_a_store_that_is_to_go_counts_for_nothing() -> None:
    """It does not stand in for one that is lost, and is not missed itself."""
    status = look(store_cluster(3), keys("s-0", "s-2", "s-3", lost=("s-1", "s-4")))
    assert message(status, "Ready") == "2 of 3 stores are registered"
    assert (conditions(status)["Ready"][0], status.lost) == ("False", ("s-1",))


def test_a_drained_store_that_dies_is_lost() -> None:
    """That it was to be emptied does not hide it."""
    away = StoreState(volume="v", draining=True, lost_since=1.0)
    assert look(store_cluster(3, drain="s-2"), keys("s-0", "s-1", s_2=away)).lost == ("s-2",)


@pytest.mark.parametrize(("left", "percentage"), [(12, 0), (6, 50), (1, 91), (0, 100), (24, 0)])
def test_draining_is_measured_by_what_was_there(left: int, percentage: int) -> None:
    """How empty a store is follows from how many it held when it was first seen; it may also get fuller."""
    cluster = store_cluster(3, drain="s-1")
    kvs = keys("s-0", "s-2", "s-1", s_1=StoreState(volume="v", draining=True))
    first = look(cluster, kvs, held={"s-1": 12}, held_up="no store has room")
    assert first.drains[0].reason == "no store has room"
    second = look(seen(cluster, first), kvs, held={"s-1": left})
    assert [(drain.replicas_left, drain.percentage) for drain in second.drains] == [(left, percentage)]
    assert conditions(second)["Progressing"][0] == ("True" if left else "False")


def test_draining_goes_on_from_where_it_was() -> None:
    """Percentages are of the same whole throughout."""
    cluster = store_cluster(3, drain="s-1")
    kvs = keys("s-0", "s-2", "s-1", s_1=StoreState(volume="v", draining=True))
    shown = []
    for left in (40, 30, 20, 10):
        cluster = seen(cluster, look(cluster, kvs, held={"s-1": left}))
        assert cluster.status is not None
        shown.append(cluster.status.drains[0].percentage)
    assert shown == [0, 25, 50, 75]


def test_a_damaged_key_is_named() -> None:
    """What cannot be read is said, and the others are counted."""
    status = look(store_cluster(3), keys("s-0", "s-1", damaged=("s-2",)))
    assert conditions(status)["Degraded"] == ("True", "MalformedRecord")
    assert KEYS.store("s-2") in message(status, "Degraded")
    assert status.ready_stores == 2


def test_what_others_know_is_kept() -> None:
    """Fields that the metastore does not tell stay as they are."""
    cluster = store_cluster(1)
    known = StoreClusterStatus(selector="app=store", zones_from="Nodes")
    status = look(seen(cluster, known), keys("s-0"))
    assert (status.selector, status.zones_from) == ("app=store", "Nodes")


def test_when_nothing_can_be_read() -> None:
    """The last figures stay, with what is wrong."""
    cluster = store_cluster(1)
    before = look(cluster, keys("s-0"))
    trouble = Trouble(Reason.METASTORE_UNREACHABLE, "no etcd endpoint answers")
    status = troubled_cluster_status(seen(cluster, before), trouble, now=LATER)
    assert conditions(status) == WELL | {"Degraded": ("True", "MetastoreUnreachable")}
    assert status.ready_stores == 1
