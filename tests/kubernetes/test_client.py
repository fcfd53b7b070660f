"""Requests whose answers only a real API server knows."""

from __future__ import annotations

from evenkeel.kube.kinds import POD, Object
from tests.kubernetes.world import World


async def ready_pod(world: World) -> Object:
    """A pod that nobody but the test looks after."""
    await world.stop("pods")
    await world.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}})
    metadata = {"name": "main-0", "namespace": world.namespace}
    spec = {"containers": [{"name": "store", "image": "none"}]}
    made = await world.kube.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    await world.kube.set_status(POD, "main-0", world.namespace, uid=made["metadata"]["uid"], status=status)
    return made


async def test_an_eviction_is_meant_for_one_pod(world: World) -> None:
    """Its successor of the same name stays, whoever has not heard of it yet; one that is gone need not be evicted."""
    pod = await ready_pod(world)
    predecessor = {**pod, "metadata": {**pod["metadata"], "uid": "another"}}
    assert await world.kube.evict(predecessor)
    assert await world.get(POD, "main-0") is not None
    assert await world.kube.evict(pod)
    assert await world.get(POD, "main-0") is None
    assert await world.kube.evict(pod)
