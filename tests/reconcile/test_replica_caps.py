"""How much of the stores' caps other tables use."""

from __future__ import annotations

import msgspec
import pytest

from evenkeel.reconcile.replica_caps import count_others
from evenkeel.reconcile.store_states import DesiredStores
from tests.reconcile.support import KEYS, TABLE, Cluster, desired, store_cluster


class Capped(Cluster):
    """Five stores with a cap, and a table of 70 partitions."""

    def __init__(self) -> None:
        super().__init__()
        self.judge(DesiredStores(cluster=store_cluster(maxReplicasPerStore=100)))
        self.reconcile(desired())

    def used(self, table: str = "another.1") -> list[int]:
        """Return how much of each store's cap other tables use, as a table sees it."""
        seen = self.drive(count_others(self.snapshot().stores, keys=KEYS, table=table))
        return [store.used_by_others for store in seen.stores]


def test_a_table_counts_the_targets_of_others() -> None:
    """The newest plans of other tables count, whether or not they are carried out."""
    cluster = Capped()
    assert cluster.used() == [42] * 5
    assert cluster.used(TABLE) == [0] * 5
    cluster.reconcile(desired(5))
    assert cluster.used() == [70] * 5


@pytest.mark.parametrize(("replicas", "taken"), [(5, 70), (1, 42)])
def test_an_unapproved_plan_and_its_predecessor_count(replicas: int, taken: int) -> None:
    """Until a plan is approved, it and its predecessor both count."""
    cluster = Capped()
    assert cluster.reconcile(msgspec.structs.replace(desired(replicas), manual=True)).awaiting_approval
    assert cluster.used() == [taken] * 5


def test_a_plan_that_cannot_be_read_is_not_counted() -> None:
    """An unreadable plan does not block other tables until it is replaced."""
    cluster = Capped()
    cluster.put(KEYS.plan_head(TABLE), "nonsense")
    assert cluster.used() == [0] * 5


def test_nothing_is_read_where_there_are_no_caps() -> None:
    """Without caps, no plans are read."""
    cluster = Cluster()
    requests = count_others(cluster.snapshot().stores, keys=KEYS, table=TABLE)
    with pytest.raises(StopIteration):
        next(requests)
