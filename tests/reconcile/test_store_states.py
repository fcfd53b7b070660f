"""Decisions about stores as time passes and stores come and go."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from evenkeel.metastore.metastore_api import Compare, Delete, Put, Txn
from evenkeel.metastore.mvcc import Mvcc
from evenkeel.protocol.records import StoreRecord, StoreState, decode, encode
from evenkeel.reconcile.known_stores import read_stores
from evenkeel.reconcile.lost_stores import next_replacement
from evenkeel.reconcile.store_states import DesiredStores, decide_store_states, leaving
from tests.reconcile.support import KEYS, store_cluster

ANYTIME = Compare(KEYS.epoch, "version", ">", -1)
SLOW, FAST = "slow.1", "fast.1"


class Sky:
    """Stores whose leases begin and end, and the operator's decisions about them."""

    def __init__(self, stores: int, *, desired: DesiredStores | None = None) -> None:
        self.metastore = Mvcc()
        self.desired = desired or DesiredStores(lost_after={SLOW: 600.0, FAST: 120.0})
        self.now = 1000.0
        for number in range(stores):
            self.come(f"s-{number}")
        self.judge()

    def come(self, *names: str, volume: str = "", **record: object) -> None:
        for name in names:
            value = encode(StoreRecord(volume=volume or f"v-{name}", **record))  # type: ignore[arg-type]
            self.metastore.txn(Txn(success=(Put(KEYS.store(name), value),)))

    def go(self, *names: str) -> None:
        self.metastore.txn(Txn(success=tuple(Delete(KEYS.store(name)) for name in names)))

    def judge(self, after: float = 0.0, *, restart_delays: bool = False) -> int:
        """Advance time and decide; return how many transactions were written."""
        self.now += after
        txns = list(
            decide_store_states(
                read_stores(self._kvs(), KEYS),
                self.desired,
                keys=KEYS,
                now=self.now,
                restart_delays=restart_delays,
                epoch=ANYTIME,
            )
        )
        for txn in txns:
            assert self.metastore.txn(txn).succeeded
        return len(txns)

    def next(self) -> float | None:
        """Return in how many seconds the next delay ends."""
        when = next_replacement(read_stores(self._kvs(), KEYS), self.desired.lost_after)
        return None if when is None else when - self.now

    def _kvs(self) -> Iterable:  # type: ignore[type-arg]
        return self.metastore.range(KEYS.all_stores()).kvs

    def state(self, name: str) -> StoreState | None:
        kv = self.metastore.get(KEYS.store_state(name))
        return None if kv is None else decode(StoreState, kv.value, key=kv.key)

    def given_up(self, name: str) -> tuple[str, ...]:
        state = self.state(name)
        assert state is not None
        return state.replace_in

    def lost_for(self, name: str) -> float | None:
        state = self.state(name)
        assert state is not None
        return None if state.lost_since is None else self.now - state.lost_since


def test_a_registered_store_is_recorded_once() -> None:
    """A store's record is kept for when it is lost; deciding again writes nothing."""
    sky = Sky(3)
    assert sky.state("s-1") == StoreState(volume="v-s-1", record=StoreRecord(volume="v-s-1"))
    assert sky.judge(30) == 0
    assert sky.next() is None


def test_each_table_replaces_a_lost_store_after_its_own_delay() -> None:
    """Each table waits for its own `lostAfter`."""
    sky = Sky(4)
    sky.go("s-1")
    sky.judge(5)
    assert (sky.lost_for("s-1"), sky.given_up("s-1"), sky.next()) == (0, (), 120)
    assert sky.judge(119) == 0
    sky.judge(1)
    assert (sky.given_up("s-1"), sky.next()) == ((FAST,), 480)
    sky.judge(480)
    assert (sky.given_up("s-1"), sky.next()) == ((FAST, SLOW), None)
    assert sky.state("s-0") == StoreState(volume="v-s-0", record=StoreRecord(volume="v-s-0"))


def test_a_store_that_returns_in_time_costs_nothing() -> None:
    """A returned store is as before, and its next loss counts from its own start."""
    sky = Sky(4)
    before = sky.state("s-1")
    sky.go("s-1")
    sky.judge(1)
    sky.judge(100)
    sky.come("s-1")
    sky.judge(1)
    assert sky.state("s-1") == before
    sky.go("s-1")
    sky.judge(60)
    assert (sky.lost_for("s-1"), sky.given_up("s-1")) == (0, ())


@pytest.mark.parametrize("volume", ["v-s-1", "v-new"], ids=["with its data", "wiped"])
def test_a_store_that_returns_late_serves_again(volume: str) -> None:
    """A returned store is usable, replaced or not, on any volume."""
    sky = Sky(4)
    sky.go("s-1")
    sky.judge(1)
    sky.judge(700)
    assert sky.given_up("s-1") == (FAST, SLOW)
    sky.come("s-1", volume=volume)
    sky.judge(1)
    assert sky.state("s-1") == StoreState(volume=volume, record=StoreRecord(volume=volume))


def test_a_table_made_later_does_not_wait_again() -> None:
    """A new table replaces a store at once if it has been lost for longer than the table's delay."""
    sky = Sky(4, desired=DesiredStores(lost_after={SLOW: 600.0}))
    sky.go("s-1")
    sky.judge(1)
    sky.judge(10_000)
    sky.desired = DesiredStores(lost_after={SLOW: 600.0, FAST: 120.0})
    sky.judge(1)
    assert sky.given_up("s-1") == (FAST, SLOW)


def test_a_dropped_table_is_forgotten() -> None:
    """A dropped table is removed from the state."""
    sky = Sky(4)
    sky.go("s-1")
    sky.judge(1)
    sky.judge(200)
    sky.desired = DesiredStores(lost_after={SLOW: 600.0})
    sky.judge(1)
    assert sky.given_up("s-1") == ()


def test_a_longer_wait_does_not_take_back_what_was_decided() -> None:
    """Raising `lostAfter` does not undo a replacement."""
    sky = Sky(4)
    sky.go("s-1")
    sky.judge(1)
    sky.judge(200)
    sky.desired = DesiredStores(lost_after={SLOW: 600.0, FAST: 6000.0})
    assert sky.judge(1) == 0
    assert sky.given_up("s-1") == (FAST,)


@pytest.mark.parametrize(
    ("stores", "vanish", "restarted"),
    [(6, 2, False), (6, 3, True), (3, 1, False), (3, 2, True), (10, 3, False), (10, 4, True)],
)
def test_losing_more_than_a_third_together_restarts_every_delay(stores: int, vanish: int, restarted: bool) -> None:
    """The check may have failed, so stores lost shortly before are awaited again too."""
    sky = Sky(stores)
    together = [f"s-{number}" for number in range(vanish)]
    sky.go(together[0])
    sky.judge(1)
    sky.go(*together[1:])
    sky.judge(50)
    assert sky.lost_for(together[0]) == (0 if restarted else 50)


def test_the_delay_restarts_once() -> None:
    """Stores that stay lost are replaced eventually, however many they are."""
    sky = Sky(3)
    sky.go("s-0", "s-1")
    sky.judge(1)
    for _ in range(20):
        sky.judge(30)
    assert sky.given_up("s-0") == sky.given_up("s-1") == (FAST, SLOW)


def test_stores_replaced_long_ago_are_not_lost_together_with_others() -> None:
    """A store that was lost long ago does not prevent the replacement of a second one."""
    sky = Sky(5)
    sky.go("s-0")
    sky.judge(1)
    sky.judge(1000)
    sky.go("s-1")
    sky.judge(10)
    since = sky.now
    sky.judge(130)
    assert (sky.given_up("s-0"), sky.given_up("s-1")) == ((FAST, SLOW), (FAST,))
    assert sky.lost_for("s-1") == sky.now - since


def test_a_third_is_of_those_that_were_left() -> None:
    """If most stores were replaced long ago, two of the last four are more than a third."""
    sky = Sky(7)
    for name in ("s-0", "s-1", "s-2"):
        sky.go(name)
        sky.judge(1000)
        sky.judge(1000)
    sky.go("s-3")
    sky.judge(1)
    sky.go("s-4")
    sky.judge(50)
    assert sky.lost_for("s-3") == 0


def test_without_a_check_the_delay_restarts() -> None:
    """Time in which the operator or etcd was unavailable does not count; decisions stay."""
    sky = Sky(4)
    sky.go("s-1")
    sky.judge(1)
    sky.judge(130)
    assert sky.given_up("s-1") == (FAST,)
    sky.judge(3600, restart_delays=True)
    assert (sky.lost_for("s-1"), sky.given_up("s-1")) == (0, (FAST,))
    sky.judge(599)
    assert sky.given_up("s-1") == (FAST,)
    sky.judge(1)
    assert sky.given_up("s-1") == (FAST, SLOW)


def test_a_store_replaced_by_all_tables_is_unchanged() -> None:
    """A new controller's first decision writes nothing about a store that every table has replaced."""
    sky = Sky(4)
    sky.go("s-1")
    sky.judge(1)
    sky.judge(700)
    assert sky.judge(700, restart_delays=True) == 0


def test_the_annotation_drains_stores() -> None:
    """The annotation drains registered and lost stores; removing it ends the drain."""
    sky = Sky(4)
    sky.go("s-2")
    sky.desired = DesiredStores(cluster=store_cluster(4, drain="s-1,s-2"), lost_after={SLOW: 600.0})
    sky.judge(1)
    states = [sky.state(f"s-{number}") for number in range(4)]
    assert [state is not None and state.draining for state in states] == [False, True, True, False]
    sky.desired = DesiredStores(cluster=store_cluster(4), lost_after={SLOW: 600.0})
    sky.judge(1)
    states = [sky.state(f"s-{number}") for number in range(4)]
    assert [state is not None and state.draining for state in states] == [False] * 4


def test_scaling_down_empties_the_last_stores_first_and_then_forgets_them() -> None:
    """A store that is scaled away drains; once it is lost and holds nothing, its state is removed."""
    sky = Sky(4)
    sky.desired = DesiredStores(cluster=store_cluster(3), holders={"s-3"})
    sky.judge(1)
    state = sky.state("s-3")
    assert state is not None
    assert state.draining
    sky.desired = DesiredStores(cluster=store_cluster(3))
    assert sky.judge(1) == 0
    sky.go("s-3")
    sky.judge(1)
    assert sky.state("s-3") is None


def test_a_lost_store_stays_known_while_it_holds_replicas() -> None:
    """A store that is lost during its drain keeps its state, because its replicas are still named."""
    sky = Sky(4)
    sky.desired = DesiredStores(cluster=store_cluster(3), holders={"s-3"}, lost_after={FAST: 120.0})
    sky.go("s-3")
    sky.judge(1)
    sky.judge(200)
    state = sky.state("s-3")
    assert state is not None
    assert (state.draining, state.replace_in) == (True, (FAST,))


@pytest.mark.parametrize("gone", [False, True], ids=["still there", "gone already"])
def test_scaling_up_in_the_middle_of_scaling_down(gone: bool) -> None:
    """After scaling up again, the store takes replicas again, or is awaited like any other."""
    sky = Sky(4)
    sky.desired = DesiredStores(cluster=store_cluster(3), holders={"s-3"})
    sky.judge(1)
    if gone:
        sky.go("s-3")
    sky.desired = DesiredStores(cluster=store_cluster(5), holders={"s-3"}, lost_after={FAST: 120.0})
    sky.judge(1)
    state = sky.state("s-3")
    assert state is not None
    assert (state.draining, state.lost_since is not None) == (False, gone)


def test_overrides_are_laid_over_what_a_store_announces() -> None:
    """The state has the StoreCluster's caps, weights, zones and labels, and follows its spec."""
    overrides = [{"name": "s-1", "zone": "b", "weight": 0, "labels": {"disk": "ssd"}, "maxReplicas": 7}]
    sky = Sky(2)
    sky.come("s-1", zone="a", labels={"rack": "4"})
    sky.desired = DesiredStores(cluster=store_cluster(2, maxReplicasPerStore=100, overrides=overrides))
    sky.judge(1)
    records = [state.record for number in range(2) if (state := sky.state(f"s-{number}")) is not None]
    assert records == [
        StoreRecord(volume="v-s-0", capacity=100),
        StoreRecord(volume="v-s-1", zone="b", weight=0.0, capacity=7, labels={"rack": "4", "disk": "ssd"}),
    ]
    sky.desired = DesiredStores(cluster=store_cluster(2))
    sky.judge(1)
    state = sky.state("s-1")
    assert state is not None
    assert state.record == StoreRecord(volume="v-s-1", zone="a", labels={"rack": "4"})


def test_maintenance_stays_with_its_volume() -> None:
    """Maintenance of a store lasts until it has another volume."""
    sky = Sky(2)
    key, record = KEYS.store_state("s-1"), StoreRecord(volume="v-s-1")
    state = StoreState(volume="v-s-1", maintenance=True, record=record)
    sky.metastore.txn(Txn(success=(Put(key, encode(state)),)))
    assert sky.judge(1) == 0
    sky.come("s-1", volume="v-new")
    sky.judge(1)
    assert sky.state("s-1") == StoreState(volume="v-new", record=StoreRecord(volume="v-new"))


@pytest.mark.parametrize("damaged", ["registration", "state", "both"])
def test_unreadable_keys_do_not_block_other_stores(damaged: str) -> None:
    """The other stores are decided; an unreadable state is rewritten if the store is registered, else left alone."""
    sky = Sky(5)
    if damaged in ("registration", "both"):
        sky.metastore.txn(Txn(success=(Put(KEYS.store("s-1"), b"nonsense"),)))
    if damaged in ("state", "both"):
        sky.metastore.txn(Txn(success=(Put(KEYS.store_state("s-1"), b"{"),)))
    sky.go("s-2")
    assert sky.judge(1) == (2 if damaged == "state" else 1)
    sky.judge(700)
    assert sky.given_up("s-2") == (FAST, SLOW)
    found = read_stores(sky.metastore.range(KEYS.all_stores()).kvs, KEYS)
    assert list(found.problems) == ([] if damaged == "state" else ["s-1"])
    assert "s-1" not in found.lost


def test_an_outdated_decision_is_refused() -> None:
    """A store that registers between the read and the write is not marked as lost."""
    sky = Sky(4)
    sky.go("s-1")
    kvs = sky.metastore.range(KEYS.all_stores()).kvs
    [txn] = decide_store_states(
        read_stores(kvs, KEYS), sky.desired, keys=KEYS, now=sky.now, restart_delays=False, epoch=ANYTIME
    )
    sky.come("s-1")
    assert not sky.metastore.txn(txn).succeeded


def test_only_numbered_stores_of_the_cluster_leave() -> None:
    """Only the StoreCluster's own store names are scaled away."""
    names = ["s-0", "s-1", "s-2", "s-x-2", "t-2", "s", "s-2x", "s--1"]
    assert leaving(store_cluster(2), names) == {"s-2"}
    assert leaving(store_cluster(2, name="s-x"), names) == {"s-x-2"}
    assert leaving(None, names) == frozenset()
