"""The cluster version on a store: announcing, following and rejecting versions."""

from __future__ import annotations

import pytest

from evenkeel.errors import UnsupportedVersionError
from evenkeel.metastore.metastore_api import Delete, Put, Txn
from evenkeel.protocol.records import ClusterVersion
from evenkeel.versions import SUPPORTED, VersionRange
from tests.protocol.support import KEYS
from tests.raft_agent.cluster import Cluster
from tests.raft_agent.test_store_registration import registered


def announced(cluster: Cluster) -> VersionRange | None:
    record = registered(cluster)
    return None if record is None else record.versions


async def test_it_announces_what_sidecar_and_state_machine_support() -> None:
    """A state machine of the first release limits the announced range; a newer one extends it when it connects."""
    async with Cluster("a") as cluster:
        await cluster.started()
        groups = cluster["a"].groups
        for machine, seen in (
            (VersionRange(1, 1), VersionRange(1, 1)),
            (None, VersionRange(1, 1)),
            (VersionRange(1, 99), SUPPORTED),
        ):
            groups.machine = machine
            groups.on_state_machine()
            await cluster.until(lambda seen=seen: announced(cluster) == seen, seconds=1)  # type: ignore[misc]
        kv = cluster.now(KEYS.store("a"))
        await cluster.pass_time(60)
        assert cluster.now(KEYS.store("a")) == kv, "nothing is written while nothing changes"


async def test_without_a_state_machine_the_current_version_stays_announced() -> None:
    """While the state machine restarts, the store still announces the current version."""
    async with Cluster("a") as cluster:
        await cluster.started()
        await cluster.put(KEYS.version, ClusterVersion(2))
        cluster["a"].groups.machine = None
        cluster["a"].groups.on_state_machine()
        await cluster.pass_time(5)
        assert announced(cluster) == VersionRange(1, 2)


async def test_the_version_never_decreases() -> None:
    """The version never decreases, also after a restart or when an older backup was restored."""
    async with Cluster("a") as cluster:
        await cluster.started()
        assert cluster["a"].agent.status().version == 1
        await cluster.put(KEYS.version, ClusterVersion(2))
        await cluster.until(lambda: cluster["a"].agent.status().version == 2, seconds=1)
        await cluster["a"].kill()
        await cluster.metastore.txn(Txn(success=(Delete(KEYS.version),)))
        cluster["a"].start()
        await cluster.started()
        assert cluster["a"].agent.status().version == 2


async def test_a_malformed_version_changes_nothing() -> None:
    """A malformed version key changes nothing."""
    async with Cluster("a") as cluster:
        await cluster.started()
        await cluster.put(KEYS.version, ClusterVersion(2))
        await cluster.until(lambda: cluster["a"].agent.status().version == 2, seconds=1)
        await cluster.metastore.txn(Txn(success=(Put(KEYS.version, b"nonsense"),)))
        await cluster["a"].kill()
        cluster["a"].start()
        await cluster.started()
        await cluster.pass_time(5)
        assert cluster["a"].agent.status().version == 2


@pytest.mark.parametrize("running", [True, False])
async def test_a_store_does_not_join_a_newer_cluster(running: bool) -> None:
    """The process ends with an error that names both versions, while running and while registering."""
    cluster = Cluster("a")
    if running:
        await cluster.started()
    await cluster.put(KEYS.version, ClusterVersion(SUPPORTED.newest + 1))
    task = cluster["a"].task
    assert task is not None
    await cluster.until(task.done, seconds=5)
    with pytest.raises(UnsupportedVersionError, match="run a newer release"):
        task.result()
    assert running or registered(cluster) is None
