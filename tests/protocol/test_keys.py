"""Names of metastore keys."""

from __future__ import annotations

import pytest

from evenkeel.errors import InvalidInputError
from evenkeel.protocol.keys import Keys
from tests.protocol.support import KEYS, TABLE

ROOT = "/evenkeel/shop/main/"


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (KEYS.epoch, "epoch"),
        (KEYS.partition(TABLE, 3).stable, "partition.assignments.stable/orders.7f3a/000003"),
        (KEYS.partition(TABLE, 3).pending, "partition.assignments.pending/orders.7f3a/000003"),
        (KEYS.partition(TABLE, 3).planned, "partition.assignments.planned/orders.7f3a/000003"),
        (KEYS.partition(TABLE, 3).lock, "partition.assignments.pending.lock/orders.7f3a/000003"),
        (KEYS.partition(TABLE, 3).trigger, "partition.change.trigger/orders.7f3a/000003"),
        (KEYS.table(TABLE), "tables/orders.7f3a"),
        (KEYS.tombstone(TABLE), "tables.dropped/orders.7f3a"),
        (KEYS.plan_head(TABLE), "plans/orders.7f3a/head"),
        (KEYS.plan_slice(TABLE, 12, 7), "plans/orders.7f3a/12/000007"),
        (KEYS.store("s1"), "stores/s1"),
        (KEYS.store_state("s1"), "stores.state/s1"),
        (KEYS.leader(TABLE, 3), "leaders/orders.7f3a/000003"),
        (KEYS.leader_target(TABLE, 3), "leader.target/orders.7f3a/000003"),
        (KEYS.inhibition("s1"), "drains/s1"),
        (KEYS.load("s1"), "load/s1"),
        (KEYS.rebalancer_context(TABLE), "rebalancer.context/orders.7f3a"),
    ],
)
def test_layout(key: str, expected: str) -> None:
    """Keys are type-first under the StoreCluster's root, as documented."""
    assert key == ROOT + expected


@pytest.mark.parametrize(
    ("namespace", "store_cluster", "field"),
    [("a/b", "c", "namespace"), ("", "c", "namespace"), ("a", "b/c", "store_cluster"), ("a", "", "store_cluster")],
)
def test_names_with_a_slash_are_refused(namespace: str, store_cluster: str, field: str) -> None:
    """An empty name, or one that reaches into another StoreCluster's keys, is refused; the error names the field."""
    with pytest.raises(InvalidInputError, match=rf"^{field}: got .*; allowed: a name without '/'"):
        Keys(namespace=namespace, store_cluster=store_cluster)


def test_prefixes_cover_their_partitions_only() -> None:
    """Each prefix matches only this table's keys of its kind, not those of a table with a longer name."""
    prefixes = KEYS.partition_prefixes("t.1").all()
    assert all(key.startswith(prefix) for key, prefix in zip(KEYS.partition("t.1", 0).all(), prefixes, strict=True))
    others = (*KEYS.partition("t.10", 0).all(), *KEYS.partition("t.1x", 0).all())
    assert not [key for key in others for prefix in prefixes if key.startswith(prefix)]
    assert not [one for one in prefixes for other in prefixes if one != other and one.startswith(other)]


def test_watched_prefixes() -> None:
    """A sidecar's prefixes cover the four kinds of keys it acts on, and a table's record and tombstone."""
    watched = (KEYS.assignments(), KEYS.tables(), KEYS.leader_targets())
    own = KEYS.partition(TABLE, 3)
    wanted = (own.stable, own.pending, own.planned, own.lock, KEYS.table(TABLE), KEYS.tombstone(TABLE))
    assert all(key.startswith(watched) for key in (*wanted, KEYS.leader_target(TABLE, 3)))
    others = (own.trigger, KEYS.leader(TABLE, 3), KEYS.plan_head(TABLE), KEYS.load("s1"), KEYS.store("s1"))
    assert not any(key.startswith(watched) for key in others)


def test_a_drop_covers_every_key_of_the_table() -> None:
    """Every key of a table is under a prefix of its drop, except those that the drop deletes one by one."""
    named = (
        *KEYS.partition(TABLE, 9).all(),
        KEYS.plan_head(TABLE),
        KEYS.plan_slice(TABLE, 1, 0),
        KEYS.leader(TABLE, 9),
        KEYS.leader_target(TABLE, 9),
    )
    assert not [key for key in named if not key.startswith(KEYS.of_table(TABLE))]
    singly = (KEYS.table(TABLE), KEYS.tombstone(TABLE), KEYS.rebalancer_context(TABLE))
    assert not [key for key in singly if key.startswith(KEYS.of_table(TABLE))]


def test_slices_sort_by_number() -> None:
    """Key order is slice order, also past 9 and 99, and plan 1's prefix does not match plan 10."""
    keys = [KEYS.plan_slice(TABLE, 1, index) for index in (0, 9, 10, 99, 100, 15_624)]
    assert keys == sorted(keys)
    assert not KEYS.plan_slice(TABLE, 10, 0).startswith(KEYS.plan_slices(TABLE, 1))
