"""What is decided about stores as time passes: scenes of stores that come and go, judged again and again."""

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
    """Stores whose leases begin and end, and a judge who looks now and then."""

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
        """Let time pass and look; returns how much was written."""
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
        """In how many seconds time alone will change something."""
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


def test_a_store_that_is_there_is_noted_once() -> None:
    """What a store announces is kept for when it is away; looking again writes nothing."""
    sky = Sky(3)
    assert sky.state("s-1") == StoreState(volume="v-s-1", record=StoreRecord(volume="v-s-1"))
    assert sky.judge(30) == 0
    assert sky.next() is None


def test_a_store_is_given_up_table_by_table() -> None:
    """Each table waits for as long as its own `lostAfter` says."""
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
    """It is what it was before, and its next absence counts from its own beginning."""
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
    """Given up or not, a store that is back is a store like the others, on whatever volume it has now."""
    sky = Sky(4)
    sky.go("s-1")
    sky.judge(1)
    sky.judge(700)
    assert sky.given_up("s-1") == (FAST, SLOW)
    sky.come("s-1", volume=volume)
    sky.judge(1)
    assert sky.state("s-1") == StoreState(volume=volume, record=StoreRecord(volume=volume))


def test_a_table_made_later_does_not_wait_again() -> None:
    """A store that has been gone for longer than a new table would wait is given up for it at once."""
    sky = Sky(4, desired=DesiredStores(lost_after={SLOW: 600.0}))
    sky.go("s-1")
    sky.judge(1)
    sky.judge(10_000)
    sky.desired = DesiredStores(lost_after={SLOW: 600.0, FAST: 120.0})
    sky.judge(1)
    assert sky.given_up("s-1") == (FAST, SLOW)


def test_a_dropped_table_is_forgotten() -> None:
    """Nobody is given up for a table that is no longer there."""
    sky = Sky(4)
    sky.go("s-1")
    sky.judge(1)
    sky.judge(200)
    sky.desired = DesiredStores(lost_after={SLOW: 600.0})
    sky.judge(1)
    assert sky.given_up("s-1") == ()


def test_a_longer_wait_does_not_take_back_what_was_decided() -> None:
    """Raising `lostAfter` after a store was given up moves nothing to and fro."""
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
    """The looking may have failed, so also those lost just before are waited for anew."""
    sky = Sky(stores)
    together = [f"s-{number}" for number in range(vanish)]
    sky.go(together[0])
    sky.judge(1)
    sky.go(*together[1:])
    sky.judge(50)
    assert sky.lost_for(together[0]) == (0 if restarted else 50)


def test_the_delay_restarts_once() -> None:
    """Stores that stay away are given up in the end, however many they are."""
    sky = Sky(3)
    sky.go("s-0", "s-1")
    sky.judge(1)
    for _ in range(20):
        sky.judge(30)
    assert sky.given_up("s-0") == sky.given_up("s-1") == (FAST, SLOW)


def test_stores_that_were_given_up_long_ago_are_not_lost_together_with_others() -> None:
    """A store that died last week does not keep a second one from ever being replaced."""
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
    """Where most stores were given up long ago, two of the last four are many."""
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
    """Time in which the operator or etcd was away does not count against a store; what was decided stays."""
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


def test_who_is_given_up_for_all_tables_stays_as_it_is() -> None:
    """A successor's first look writes nothing about a store for which nobody waits."""
    sky = Sky(4)
    sky.go("s-1")
    sky.judge(1)
    sky.judge(700)
    assert sky.judge(700, restart_delays=True) == 0


def test_draining_is_what_somebody_asked_for() -> None:
    """The annotation names stores to be emptied, whether they are there or not; taking it back is enough."""
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
    """A store that goes is drained; once it is away and holds nothing, nobody misses it."""
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


def test_a_store_that_goes_is_missed_while_something_is_on_it() -> None:
    """A store that dies while it is emptied stays known, for its replicas are still named."""
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
    """The store takes replicas again, or is awaited as a store like any other."""
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
    """Caps, weights, zones and labels of the StoreCluster are in the state, and follow its spec."""
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
    """What a person has said of a store holds until another volume is there in its place."""
    sky = Sky(2)
    key, record = KEYS.store_state("s-1"), StoreRecord(volume="v-s-1")
    state = StoreState(volume="v-s-1", maintenance=True, record=record)
    sky.metastore.txn(Txn(success=(Put(key, encode(state)),)))
    assert sky.judge(1) == 0
    sky.come("s-1", volume="v-new")
    sky.judge(1)
    assert sky.state("s-1") == StoreState(volume="v-new", record=StoreRecord(volume="v-new"))


@pytest.mark.parametrize("damaged", ["registration", "state", "both"])
def test_keys_that_cannot_be_read_hold_up_no_other(damaged: str) -> None:
    """The others are judged; of the damaged one a state that can be known is written anew, else it is left alone."""
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


def test_a_decision_on_what_is_no_longer_so_does_not_land() -> None:
    """A store that came back between the look and the write is not written off."""
    sky = Sky(4)
    sky.go("s-1")
    kvs = sky.metastore.range(KEYS.all_stores()).kvs
    [txn] = decide_store_states(
        read_stores(kvs, KEYS), sky.desired, keys=KEYS, now=sky.now, restart_delays=False, epoch=ANYTIME
    )
    sky.come("s-1")
    assert not sky.metastore.txn(txn).succeeded


def test_only_numbered_stores_of_the_cluster_leave() -> None:
    """Names of other clusters, or of none, are nobody's to take away."""
    names = ["s-0", "s-1", "s-2", "s-x-2", "t-2", "s", "s-2x", "s--1"]
    assert leaving(store_cluster(2), names) == {"s-2"}
    assert leaving(store_cluster(2, name="s-x"), names) == {"s-x-2"}
    assert leaving(None, names) == frozenset()
