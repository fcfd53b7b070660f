"""Orders that hand leaderships over to preferred stores."""

from __future__ import annotations

import msgspec
import pytest

from evenkeel.metastore.metastore_api import Delete, Put, Txn
from evenkeel.protocol.records import InhibitionOrder, Leader, LeaderOrder, decode
from evenkeel.reconcile.leader_orders import (
    AT_ONCE,
    EXPIRE_SECONDS,
    LEADERS_ANNOTATION,
    chosen_leaders,
    format_leaders,
    order_leaders,
)
from tests.reconcile.support import KEYS, PARTITIONS, TABLE, Cluster, desired, table

NOW = 5000.0


class Led(Cluster):
    """A table whose leaders are the plan's."""

    def __init__(self, stores: int = 5) -> None:
        super().__init__(stores)
        self.reconcile(desired())
        plan = self.snapshot().plan
        assert plan is not None
        self.rows = [[peer.store for peer in plan.target(p)] for p in range(PARTITIONS)]
        for partition, row in enumerate(self.rows):
            self.lead(partition, row[0])

    def lead(self, partition: int, store: str) -> None:
        self.put(KEYS.leader(TABLE, partition), Leader(store=store, term=2))

    def order(self, chosen: dict[int, str] | None = None, *, now: float = NOW) -> dict[int, str]:
        """Write orders, and return all that exist then."""
        for txn in order_leaders(self.snapshot(), chosen or {}, now=now, epoch=self.epoch):
            self.metastore.txn(txn)
        return {partition: order.store for partition, order in self.orders().items()}

    def orders(self) -> dict[int, LeaderOrder]:
        prefix = f"{KEYS.leader_targets()}{TABLE}/"
        found = self.metastore.range(prefix).kvs
        return {int(kv.key.removeprefix(prefix)): decode(LeaderOrder, kv.value, key=kv.key) for kv in found}


def test_no_orders_if_all_leaders_are_preferred() -> None:
    """No order is written if every leader is the plan's."""
    assert Led().order() == {}


def test_a_store_with_inhibited_leadership_gets_no_orders() -> None:
    """A store with inhibited leadership gets no orders until the inhibition ends."""
    cluster = Led()
    preferred, other = cluster.rows[3][:2]
    cluster.lead(3, other)
    cluster.put(KEYS.inhibition(preferred), InhibitionOrder(pod="u"))
    assert cluster.order() == {}
    cluster.metastore.txn(Txn(success=(Delete(KEYS.inhibition(preferred)),)))
    assert cluster.order() == {3: preferred}


def test_a_leadership_is_handed_back() -> None:
    """An order names the preferred store and its expiry, and is written once."""
    cluster = Led()
    cluster.lead(3, cluster.rows[3][1])
    assert cluster.order() == {3: cluster.rows[3][0]}
    assert cluster.orders()[3].expires == NOW + EXPIRE_SECONDS
    before = cluster.metastore.revision
    cluster.order(now=NOW + 30)
    assert cluster.metastore.revision == before


def test_only_so_many_at_once() -> None:
    """Existing orders count; more follow when they have been carried out."""
    cluster = Led()
    for partition, row in enumerate(cluster.rows):
        cluster.lead(partition, row[1])
    first = cluster.order()
    assert len(first) == AT_ONCE
    for partition in list(first)[:5]:
        cluster.lead(partition, first[partition])
        cluster.metastore.txn(Txn(success=(Delete(KEYS.leader_target(TABLE, partition)),)))
    second = cluster.order()
    assert len(second) == AT_ONCE
    assert len(second.keys() - first.keys()) == 5


@pytest.mark.parametrize("why", ["lost", "draining", "given up", "moving", "no voter"])
def test_unsuitable_stores_get_no_orders(why: str) -> None:
    """A lost, draining or replaced store and a learner get no orders; nor does a partition that is changing."""
    cluster = Led()
    wanted = cluster.rows[3][0]
    cluster.lead(3, cluster.rows[3][1])
    match why:
        case "lost":
            cluster.metastore.txn(Txn(success=(Delete(KEYS.store(wanted)),)))
        case "draining":
            cluster.drain(wanted)
        case "given up":
            cluster.give_up(wanted)
        case "moving":
            cluster.reconcile(desired(5))
        case "no voter":
            stable = cluster.snapshot().partition(3).stable
            assert stable is not None
            others = tuple(peer for peer in stable.peers if peer.store != wanted)
            cluster.put(KEYS.partition(TABLE, 3).stable, msgspec.structs.replace(stable, peers=others))
    assert cluster.order() == {}


def test_an_unapproved_plan_orders_no_leaders() -> None:
    """The leaders of an unapproved plan are not ordered; those that a user has chosen are."""
    cluster = Led()
    cluster.lead(3, cluster.rows[3][1])
    assert cluster.order() == {3: cluster.rows[3][0]}
    cluster.metastore.txn(Txn(success=(Delete(KEYS.leader_target(TABLE, 3)),)))
    assert cluster.reconcile(msgspec.structs.replace(desired(5), manual=True)).awaiting_approval
    assert cluster.order() == {}
    assert cluster.order({5: cluster.rows[5][2]}) == {5: cluster.rows[5][2]}


def test_a_users_choice_takes_precedence_over_the_plan() -> None:
    """The chosen store leads if it is a voter, while it is chosen; otherwise the plan's store leads."""
    cluster = Led()
    strangers = sorted({f"s{n}" for n in range(5)} - set(cluster.rows[4]))
    chosen = {3: cluster.rows[3][2], 4: strangers[0]}
    assert cluster.order(chosen) == {3: cluster.rows[3][2]}
    cluster.metastore.txn(Txn(success=(Delete(KEYS.leader_target(TABLE, 3)),)))
    cluster.lead(3, cluster.rows[3][2])
    assert cluster.order(chosen) == {}
    assert cluster.order() == {3: cluster.rows[3][0]}


@pytest.mark.parametrize("value", [b"nonsense", None], ids=["malformed", "long expired"])
def test_overdue_orders_are_removed(value: bytes | None) -> None:
    """An order that a leaderless partition cannot remove does not block other orders."""
    cluster = Led()
    key = KEYS.leader_target(TABLE, 9)
    cluster.put(key, LeaderOrder("s0", NOW))
    if value is not None:
        cluster.metastore.txn(Txn(success=(Put(key, value),)))
    if value is None:
        assert cluster.order(now=NOW + EXPIRE_SECONDS - 1) == {9: "s0"}
    assert cluster.order(now=NOW + EXPIRE_SECONDS) == {}


def test_a_table_without_a_plan_has_no_orders() -> None:
    """A table without a plan has no preferred leaders."""
    cluster = Cluster()
    assert list(order_leaders(cluster.snapshot(), {}, now=NOW, epoch=cluster.epoch)) == []


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        ("", {}),
        ("3=main-2", {3: "main-2"}),
        (" 3 = main-2 ,7=main-0,", {3: "main-2", 7: "main-0"}),
        ("x=main-2,4,5=,=main-1,-1=main-0", {}),
    ],
)
def test_the_annotation(text: str, chosen: dict[int, str]) -> None:
    """Valid entries are parsed, and formatted text can be parsed."""
    assert chosen_leaders(table(annotations={LEADERS_ANNOTATION: text})) == chosen
    assert chosen_leaders(table(annotations={LEADERS_ANNOTATION: format_leaders(chosen)})) == chosen
