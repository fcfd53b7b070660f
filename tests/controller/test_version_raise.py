"""The cluster version under a controller: it rises when every store supports it, unless a user limits it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import get_args

import pytest

from evenkeel.errors import UnsupportedVersionError
from evenkeel.model.conditions import FIRST_TYPES, ConditionType
from evenkeel.model.partitionassignment import PartitionAssignment
from evenkeel.model.rebalanceplan import RebalancePlan
from evenkeel.model.storecluster import StoreCluster, StoreClusterStatus
from evenkeel.model.table import Table
from evenkeel.protocol.records import ClusterVersion, StoreState, decode, encode, read_version
from evenkeel.reconcile.cluster_version import MAX_VERSION_ANNOTATION
from evenkeel.versions import SUPPORTED, Feature, VersionRange, check_version, supports
from tests.controller.support import KEYS, Scene, conditions_of, table
from tests.controller.test_controller import away

STORES = [f"main-{number}" for number in range(4)]
ANNOTATION = MAX_VERSION_ANNOTATION.removeprefix("evenkeel.dev/")


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    """Four stores of the first release."""
    async with Scene(versions=None) as found:
        yield found


async def version(scene: Scene) -> int:
    kv = await scene.metastore.get(KEYS.version)
    return read_version(None if kv is None else kv.value, key=KEYS.version)


async def status(scene: Scene) -> StoreClusterStatus:
    await scene.pass_time(4)
    found = (await scene.cluster()).status
    assert found is not None
    return found


async def update(scene: Scene, *names: str) -> None:
    """Replace these stores with ones of this release, as a rolling update does."""
    for name in names:
        await scene.go(name)
        await scene.come(name, versions=SUPPORTED)
        await scene.pass_time(1)


async def test_it_rises_with_the_last_store(scene: Scene) -> None:
    """One store of the first release prevents it; the status has the current and the supported version."""
    await update(scene, *STORES[:3])
    assert await version(scene) == 1
    found = await status(scene)
    assert (found.version, found.supported_version) == (1, 1)
    await update(scene, STORES[3])
    assert await version(scene) == SUPPORTED.newest
    found = await status(scene)
    assert (found.version, found.supported_version) == (SUPPORTED.newest, SUPPORTED.newest)
    assert conditions_of(found)["Degraded"][0] == "False"


async def test_a_store_that_is_away_counts_while_it_holds_replicas(scene: Scene) -> None:
    """A lost store may come back with its old release: its replicas have to be replaced first."""
    await scene.make_table()
    await scene.go(STORES[3])
    await update(scene, *STORES[:3])
    assert await version(scene) == 1
    await scene.pass_time(700, step=5)
    while await scene.arrive():
        await scene.pass_time(1)
    await scene.pass_time(60, step=5)
    assert await version(scene) == SUPPORTED.newest


async def test_a_user_limits_it(scene: Scene) -> None:
    """The annotation limits the version; without it, the version rises at once."""
    await scene.annotate(StoreCluster, "main", **{ANNOTATION: "1"})
    await update(scene, *STORES)
    found = await status(scene)
    assert (await version(scene), found.version, found.supported_version) == (1, 1, SUPPORTED.newest)
    await scene.annotate(StoreCluster, "main", **{ANNOTATION: ""})
    assert (await status(scene)).version == SUPPORTED.newest


@pytest.mark.parametrize("text", ["soon", "-1", "1.5", "²"])
async def test_an_invalid_limit_is_reported_and_the_version_stays(scene: Scene, text: str) -> None:
    """An invalid limit is not ignored: a raised version never falls."""
    await scene.annotate(StoreCluster, "main", **{ANNOTATION: text})
    await update(scene, *STORES)
    found = await status(scene)
    assert found.version == 1
    assert conditions_of(found)["Degraded"] == ("True", "SpecInvalid")


async def test_it_is_never_lowered(scene: Scene) -> None:
    """A limit below the version is reported and has no effect; so is a returning store of the first release."""
    await update(scene, *STORES)
    await scene.annotate(StoreCluster, "main", **{ANNOTATION: "1"})
    assert conditions_of(await status(scene))["Degraded"] == ("True", "SpecInvalid")
    await scene.annotate(StoreCluster, "main", **{ANNOTATION: ""})
    await scene.go(STORES[0])
    await scene.come(STORES[0], versions=None)
    found = await status(scene)
    assert (await version(scene), found.version, found.supported_version) == (SUPPORTED.newest, SUPPORTED.newest, 1)
    assert conditions_of(found)["Degraded"] == ("True", "VersionUnsupported")


async def test_it_stays_while_the_store_cluster_is_paused(scene: Scene) -> None:
    """A paused StoreCluster's version does not rise."""
    await scene.annotate(StoreCluster, "main", paused="true")
    await update(scene, *STORES)
    assert (await status(scene)).version == 1
    await scene.annotate(StoreCluster, "main", paused="false")
    assert (await status(scene)).version == SUPPORTED.newest


async def test_a_store_that_registers_in_between_counts(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a store of the first release registers between the read and the write, the transaction is refused."""
    first, txn = True, scene.metastore.txn

    async def late(wanted):  # type: ignore[no-untyped-def]
        nonlocal first
        if first and any(op.key == KEYS.version for op in wanted.success):
            first = False
            await scene.come("main-9", versions=None)
        return await txn(wanted)

    monkeypatch.setattr(scene.metastore, "txn", late)
    await update(scene, *STORES)
    await scene.pass_time(5)
    assert not first
    assert await version(scene) == 1


async def test_a_newer_cluster_is_left_alone(scene: Scene) -> None:
    """An operator of this release changes nothing there, reports why, and does not acquire the epoch."""
    await scene.put(KEYS.version, encode(ClusterVersion(SUPPORTED.newest + 1)))
    found = await status(scene)
    assert conditions_of(found)["Degraded"] == ("True", "VersionUnsupported")
    await scene.stop()
    before = await scene.metastore.get(KEYS.epoch)
    scene.controller = scene.make_controller("second")
    scene.start()
    await scene.pass_time(60, step=5)
    assert await scene.metastore.get(KEYS.epoch) == before
    assert "run a newer release" in scene.controller.problem


async def test_a_version_that_cannot_be_read_stops_everything_until_it_can(scene: Scene) -> None:
    """With an unreadable version nothing is written, the status names the key, and the controller recovers."""
    await scene.put(KEYS.version, b"nonsense")
    found = await status(scene)
    assert conditions_of(found)["Degraded"] == ("True", "VersionUnsupported")
    assert KEYS.version in scene.controller.problem
    await scene.delete(KEYS.version)
    await update(scene, *STORES)
    await scene.pass_time(60, step=5)
    assert (await status(scene)).version == SUPPORTED.newest


async def test_what_a_store_announced_outlives_its_lease(scene: Scene) -> None:
    """The state's copy of the record has the supported versions."""
    await update(scene, STORES[0])
    await scene.go(STORES[0])
    await scene.pass_time(1)
    kv = await scene.metastore.get(KEYS.store_state(STORES[0]))
    assert kv is not None
    record = decode(StoreState, kv.value, key=kv.key).record
    assert record is not None
    assert record.supported == SUPPORTED


def test_features_have_versions() -> None:
    """Every feature is off in a cluster of the first release, and on in the newest."""
    assert not any(supports(1, feature) for feature in Feature)
    assert all(supports(SUPPORTED.newest, feature) for feature in Feature)


def test_versions_that_are_not_supported_are_named() -> None:
    """Newer and older versions are refused, with the remedy."""
    check_version(2, of="x", supported=VersionRange(2, 3))
    with pytest.raises(UnsupportedVersionError, match="x has cluster version 4, but this release supports 2 to 3: run"):
        check_version(4, of="x", supported=VersionRange(2, 3))
    with pytest.raises(UnsupportedVersionError, match="run an older release"):
        check_version(1, of="x", supported=VersionRange(2, 3))


async def test_conditions_of_newer_types_wait_for_it(scene: Scene) -> None:
    """An operator of the first release may take over: it cannot read an object with an unknown condition type."""
    await scene.make_table()
    await scene.apply(table("wide", replicas=9))
    assert await types(scene) == FIRST_TYPES - {"Accepted"}
    with away(scene, KEYS.root):
        await scene.pass_time(10)
        assert await types(scene) <= FIRST_TYPES
    await update(scene, *STORES)
    await scene.pass_time(60, step=1)
    assert await types(scene) == frozenset(get_args(ConditionType)) - {"Accepted"}


async def test_a_known_version_counts_without_the_metastore(scene: Scene) -> None:
    """A controller that starts while etcd is unreachable takes the version from the StoreCluster's status."""
    await scene.make_table()
    await update(scene, *STORES)
    await scene.pass_time(60, step=1)
    await scene.stop()
    scene.controller = scene.make_controller("second")
    with away(scene, KEYS.root):
        scene.start()
        await scene.pass_time(10)
        assert "Available" in await types(scene)


async def types(scene: Scene) -> frozenset[str]:
    """Return all condition types of all resources."""
    await scene.pass_time(10)
    found = [
        one
        for kind in (StoreCluster, Table, PartitionAssignment, RebalancePlan)
        for one in await scene.resources.all_of(kind)
    ]
    return frozenset(entry.type for one in found if one.status is not None for entry in one.status.conditions)
