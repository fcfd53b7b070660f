"""One controller for each StoreCluster."""

from __future__ import annotations

from typing import cast

from evenkeel.kube.kube_client import Kube
from evenkeel.metastore.memory_metastore import MemoryMetastore
from evenkeel.model.storecluster import StoreCluster
from evenkeel.protocol.keys import Keys
from evenkeel_operator.kinds import OWNER_FIELDS
from evenkeel_operator.kube.kube_status_writer import KubeStatusWriter
from evenkeel_operator.kube.object_cache import Cache, Key
from evenkeel_operator.kube.resource_reader import Reader
from evenkeel_operator.reconcilers.cluster_controllers import ClusterControllers
from evenkeel_operator.reconcilers.kube_resources import KubeResources
from tests.kube_operator.support import FakeKube, store_cluster, turns

KEYS = Keys(namespace="shop", store_cluster="main")


def resources(key: Key) -> KubeResources:
    kube, cache = cast(Kube, FakeKube()), Cache(OWNER_FIELDS)
    statuses = KubeStatusWriter(kube, cache)
    return KubeResources(
        kube,
        cache,
        statuses,
        Reader(statuses),
        cluster=key,
        with_node_zones=lambda cluster: cluster,
        describe=lambda _, status: status,
    )


async def test_new_credentials_restart_the_controller() -> None:
    """A new connection to etcd starts a new controller; the same connection keeps it."""
    ways, asked = [MemoryMetastore(), MemoryMetastore()], [0, 0, 1, 1]
    asks = iter(asked)

    async def metastore(cluster: StoreCluster) -> MemoryMetastore:
        return ways[next(asks)]

    controllers = ClusterControllers(holder="tests", metastore=metastore, resources=resources, fenced=print)
    for _ in asked:
        await controllers.ensure(store_cluster())
        await turns()
    assert len(controllers) == 1
    assert [(await one.get(KEYS.epoch) is not None) for one in ways] == [True, True]
    found = await ways[1].get(KEYS.epoch)
    assert found is not None
    assert found.version == 1, "it acquired the epoch once"
    await controllers.close()
