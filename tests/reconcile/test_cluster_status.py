"""A StoreCluster's status."""

from __future__ import annotations

from typing import Any

import pytest

from evenkeel.metastore.metastore_api import KeyValue
from evenkeel.model.conditions import (
    Reason,
    condition,
    condition_of,
    merge_conditions,
    projected,
    with_kstatus,
)
from evenkeel.model.storecluster import MetastoreStatus, StoreCluster, StoreClusterStatus
from evenkeel.protocol.records import StoreLoad, StoreRecord, StoreState, encode
from evenkeel.reconcile.cluster_status import Held, cluster_problem_status, cluster_status
from evenkeel.reconcile.cluster_version import Versions
from evenkeel.reconcile.known_stores import read_stores
from evenkeel.reconcile.metastore_adoption import MetastoreSeen
from evenkeel.reconcile.readiness import Problem
from tests.reconcile.support import KEYS, conditions, message, store_cluster

FIRST, LATER = "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z"
WELL = {
    "Ready": ("True", "AsExpected"),
    "Progressing": ("False", "AsExpected"),
    "Degraded": ("False", "AsExpected"),
}

FULL = {"orders.1": Problem(Reason.NO_FEASIBLE_PLACEMENT, "no store has room")}
"""Why a table cannot be placed."""


def keys(
    *there: str, lost: tuple[str, ...] = (), damaged: tuple[str, ...] = (), **states: StoreState
) -> list[KeyValue]:
    """Return the keys of registered and lost stores, and states by `s_1=...`."""
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


def status_of(cluster: StoreCluster, kvs: list[KeyValue], *, now: str = FIRST, **known: Any) -> StoreClusterStatus:
    stores = read_stores(kvs, KEYS)
    return cluster_status(
        cluster,
        stores,
        **{"loads": {}, "held": {}, "tables": 2, "versions": Versions(version=1, supported=1), **known},
        now=now,
    )


def seen(cluster: StoreCluster, status: StoreClusterStatus) -> StoreCluster:
    return cluster.model_copy(update={"status": status})


def test_all_is_well() -> None:
    """The desired number of stores is registered; a later pass changes nothing."""
    loads = {"s-0": StoreLoad(replicas=5, leading=1, log_bytes=0, bytes_per_second=0)}
    cluster, kvs = store_cluster(3, generation=4), keys("s-0", "s-1", "s-2")
    status = status_of(cluster, kvs, loads=loads)
    assert conditions(status) == WELL
    assert (status.stores, status.ready_stores, status.tables, status.replicas) == (3, 3, 2, 5)
    assert (status.lost, status.drains, status.observed_generation) == ((), (), 4)
    assert status_of(seen(cluster, status), kvs, loads=loads, now=LATER) == status


def test_stores_that_are_lost() -> None:
    """The status names lost stores, and those whose replicas are replaced; times show since when."""
    cluster = store_cluster(3)
    status = status_of(cluster, keys("s-0", "s-1", "s-2"))
    gone = StoreState(volume="v", lost_since=1.0, replace_in=("orders.1",))
    status = status_of(seen(cluster, status), keys("s-0", lost=("s-1",), s_2=gone), now=LATER)
    assert conditions(status) == WELL | {"Ready": ("False", "StoresNotReady"), "Degraded": ("True", "StoresLost")}
    assert (status.stores, status.ready_stores, status.lost) == (3, 1, ("s-1", "s-2"))
    assert message(status, "Degraded") == "lost: s-1, s-2; replicas of s-2 are being replaced"
    assert {entry.type: entry.last_transition_time for entry in status.conditions}["Progressing"] == FIRST


def test_a_store_that_is_scaled_away_does_not_count() -> None:
    """A store that is scaled away neither substitutes a lost one nor counts as lost."""
    status = status_of(store_cluster(3), keys("s-0", "s-2", "s-3", lost=("s-1", "s-4")))
    assert message(status, "Ready") == "2 of 3 stores are registered"
    assert (conditions(status)["Ready"][0], status.lost) == ("False", ("s-1",))


def test_a_drained_store_that_dies_is_lost() -> None:
    """A drain does not hide that a store is lost."""
    away = StoreState(volume="v", draining=True, lost_since=1.0)
    assert status_of(store_cluster(3, drain="s-2"), keys("s-0", "s-1", s_2=away)).lost == ("s-2",)


@pytest.mark.parametrize(("left", "percentage"), [(12, 0), (6, 50), (1, 91), (0, 100), (24, 0)])
def test_draining_is_measured_by_what_was_there(left: int, percentage: int) -> None:
    """The percentage is relative to what the store held when the drain was first seen; it may also fall."""
    cluster = store_cluster(3, drain="s-1")
    kvs = keys("s-0", "s-2", "s-1", s_1=StoreState(volume="v", draining=True))
    first = status_of(cluster, kvs, held={"s-1": Held(12, None, frozenset(FULL))}, blocked=FULL)
    assert first.drains[0].reason == "table orders: no store has room"
    assert conditions(first)["Ready"] == ("True", "AsExpected")
    second = status_of(seen(cluster, first), kvs, held={"s-1": Held(left)})
    assert [(drain.replicas_left, drain.percentage) for drain in second.drains] == [(left, percentage)]
    assert conditions(second)["Progressing"][0] == ("True" if left else "False")


def scaled_down(*, tables: frozenset[str], blocked: dict[str, Problem], **known: Any) -> StoreClusterStatus:
    """Return the status of three stores of which two are desired; the third holds replicas of tables."""
    kvs = keys("s-0", "s-1", "s-2", s_2=StoreState(volume="v", draining=True), **known)
    return status_of(store_cluster(2, generation=4), kvs, held={"s-2": Held(12, None, tables)}, blocked=blocked)


def test_a_store_that_can_never_drain() -> None:
    """The StoreCluster is not Ready in its generation if a table has no other place; a user has to change something."""
    status = scaled_down(tables=frozenset(FULL), blocked=FULL)
    no = ("False", "NoFeasiblePlacement")
    assert (conditions(status)["Ready"], conditions(status)["Degraded"]) == (no, ("True", no[1]))
    assert (status.observed_generation, status.drains[0].reason) == (4, "table orders: no store has room")
    assert message(status, "Ready") == (
        "generation 4 is not applied: store s-2 cannot drain: table orders: no store has room; change the "
        "table, or raise spec.stores again"
    )
    assert stalled(status) == ("True", "NoFeasiblePlacement")


def test_a_store_that_is_draining() -> None:
    """Neither a table on other stores nor one that waits for new stores blocks a drain permanently."""
    coming = {"orders.1": Problem(Reason.STORES_NOT_READY, "1 of 2 stores are registered")}
    for tables, blocked in ((frozenset[str](("others.1",)), FULL), (frozenset(coming), coming)):
        status = scaled_down(tables=tables, blocked=blocked)
        assert (conditions(status)["Ready"], stalled(status)) == (("True", "AsExpected"), ("False", "AsExpected"))
        assert conditions(status)["Progressing"] == ("True", "Rebalancing")


def test_what_is_refused_is_stalled_whatever_else_is_wrong() -> None:
    """A lost store and pending pods do not hide that the spec is not applied."""
    refused, others = status_of(store_cluster(2), keys("s-0", "s-1")).conditions, Reason.STORES_LOST
    reasons = {"Ready": Reason.SPEC_INVALID, "Degraded": others}
    wrong = [condition(kind, kind == "Degraded", why, now=FIRST, generation=1) for kind, why in reasons.items()]  # type: ignore[arg-type]
    found = with_kstatus(merge_conditions(refused, wrong), now=FIRST)
    assert stalled(StoreClusterStatus(conditions=found)) == ("True", "SpecInvalid")


def stalled(status: StoreClusterStatus) -> tuple[str, str]:
    found = condition_of(status.conditions, "Stalled")
    assert found is not None
    return found.status, found.reason


@pytest.mark.parametrize(
    ("request_", "known", "why"),
    [
        ("ff@1", None, "but etcd cluster aa answers; nothing was adopted"),
        ("ff", MetastoreStatus(cluster_id="aa", revision=10), "but etcd cluster aa answers; nothing was adopted"),
        ("aa@99", MetastoreStatus(cluster_id="aa", revision=10), "but etcd cluster aa has not reached that revision"),
        ("ff@1", MetastoreStatus(cluster_id="aa", revision=10, adopted="ff@1"), ""),
        (None, MetastoreStatus(cluster_id="aa", revision=10), ""),
    ],
)
def test_a_metastore_that_is_not_there_to_adopt(request_: str | None, known: MetastoreStatus | None, why: str) -> None:
    """The spec is refused with a remedy unless the request was carried out before; a later pass writes nothing."""
    spec: dict[str, Any] = {"adoptMetastore": request_} if request_ else {}
    cluster = seen(store_cluster(1, **spec), StoreClusterStatus(metastore=known))
    status = status_of(cluster, keys("s-0"), metastore=MetastoreSeen("aa", 17))
    assert conditions(status)["MetastoreMismatch"] == ("False", "AsExpected")
    if not why:
        assert (conditions(status)["Ready"], stalled(status)[0]) == (("True", "AsExpected"), "False")
        return
    assert (conditions(status)["Ready"], stalled(status)) == (("False", "SpecInvalid"), ("True", "SpecInvalid"))
    assert f"is not applied: spec.adoptMetastore is {request_}, {why}" in message(status, "Ready")
    assert "remove spec.adoptMetastore, or start the etcd cluster that it names" in message(status, "Ready")
    later = status_of(seen(cluster, status), keys("s-0"), metastore=MetastoreSeen("aa", 18), now=LATER)
    assert later == status


def test_draining_goes_on_from_where_it_was() -> None:
    """Percentages have the same denominator throughout."""
    cluster = store_cluster(3, drain="s-1")
    kvs = keys("s-0", "s-2", "s-1", s_1=StoreState(volume="v", draining=True))
    shown = []
    for left in (40, 30, 20, 10):
        cluster = seen(cluster, status_of(cluster, kvs, held={"s-1": Held(left)}))
        assert cluster.status is not None
        shown.append(cluster.status.drains[0].percentage)
    assert shown == [0, 25, 50, 75]


def test_bytes_show_when_a_store_is_empty() -> None:
    """The end is projected from the rate since the start, by replicas if no sizes are known; it is unknown at first."""
    for bytes_, known in (((4000, 1000, 1000), 4000), ((None, None, None), None)):
        cluster = store_cluster(3, drain="s-1")
        kvs = keys("s-0", "s-2", "s-1", s_1=StoreState(volume="v", draining=True))
        shown = []
        for left, size, now in zip((40, 20, 20), bytes_, (FIRST, LATER, "2026-01-01T00:01:05Z"), strict=True):
            cluster = seen(cluster, status_of(cluster, kvs, held={"s-1": Held(left, size)}, now=now))
            assert cluster.status is not None
            shown.append(cluster.status.drains[0])
        assert [(drain.bytes_left, drain.bytes_total) for drain in shown] == [(size, known) for size in bytes_]
        assert {drain.started_at for drain in shown} == {FIRST}
        minutes = projected(FIRST, LATER, done=3, left=1) if known else projected(FIRST, LATER, done=1, left=1)
        assert [drain.expected_at for drain in shown] == [None, minutes, minutes]


def test_a_stalled_drain_has_no_expected_end() -> None:
    """An expected time is removed once it has passed, and comes back when replicas leave."""
    cluster = store_cluster(3, drain="s-1")
    kvs = keys("s-0", "s-2", "s-1", s_1=StoreState(volume="v", draining=True))
    shown = []
    for left, now in ((40, FIRST), (20, LATER), (20, "2026-01-01T00:02:00Z"), (20, "2026-01-01T05:00:00Z")):
        cluster = seen(cluster, status_of(cluster, kvs, held={"s-1": Held(left)}, now=now))
        assert cluster.status is not None
        shown.append(cluster.status.drains[0].expected_at)
    assert shown == [None, "2026-01-01T00:02:00Z", None, None]
    status = status_of(cluster, kvs, held={"s-1": Held(10)}, now="2026-01-01T06:00:00Z")
    assert status.drains[0].expected_at == "2026-01-01T08:00:00Z"


def test_a_damaged_key_is_named() -> None:
    """An unreadable key is reported, and the other stores are counted."""
    status = status_of(store_cluster(3), keys("s-0", "s-1", damaged=("s-2",)))
    assert conditions(status)["Degraded"] == ("True", "MalformedRecord")
    assert KEYS.store("s-2") in message(status, "Degraded")
    assert status.ready_stores == 2


def test_what_others_know_is_kept() -> None:
    """Fields that are not derived from the metastore are kept."""
    cluster = store_cluster(1)
    known = StoreClusterStatus(selector="app=store", zones_from="Nodes")
    status = status_of(seen(cluster, known), keys("s-0"))
    assert (status.selector, status.zones_from) == ("app=store", "Nodes")


def test_when_nothing_can_be_read() -> None:
    """The last figures stay, with the problem."""
    cluster = store_cluster(1)
    before = status_of(cluster, keys("s-0"))
    problem = Problem(Reason.METASTORE_UNREACHABLE, "no etcd endpoint answers")
    status = cluster_problem_status(seen(cluster, before), problem, now=LATER)
    assert conditions(status) == WELL | {
        "Ready": ("Unknown", "MetastoreUnreachable"),
        "Degraded": ("True", "MetastoreUnreachable"),
    }
    assert status.ready_stores == 1


def test_wall_clocks_that_differ() -> None:
    """Degraded names the stores, the difference and the remedy; the stores are ready anyway."""
    ahead = StoreLoad(replicas=5, leading=1, log_bytes=0, bytes_per_second=0, clock_ahead=172_800)
    status = status_of(store_cluster(2), keys("s-0", "s-1"), loads={"s-1": ahead})
    assert conditions(status) == WELL | {"Degraded": ("True", "ClockSkew")}
    assert message(status, "Degraded") == (
        "wall clocks differ from most stores': s-1 (+172800 s); check NTP on their nodes"
    )
