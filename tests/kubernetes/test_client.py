"""Requests whose responses only a real API server knows."""

from __future__ import annotations

import pytest

from evenkeel.errors import ApiConflictError, KubernetesError
from evenkeel.kube.object_kinds import NAMESPACE, POD, SECRET, Object
from tests.kubernetes.world import World


async def ready_pod(world: World) -> Object:
    """A pod without a controller."""
    await world.stop("pods")
    await world.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}})
    metadata = {"name": "main-0", "namespace": world.namespace}
    spec = {"containers": [{"name": "store", "image": "none"}]}
    made = await world.kube.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    await world.kube.set_status(POD, "main-0", world.namespace, uid=made["metadata"]["uid"], status=status)
    return made


async def test_an_eviction_is_meant_for_one_pod(world: World) -> None:
    """Its successor of the same name is not evicted; a pod that is gone need not be."""
    pod = await ready_pod(world)
    predecessor = {**pod, "metadata": {**pod["metadata"], "uid": "another"}}
    assert await world.kube.evict(predecessor)
    assert await world.get(POD, "main-0") is not None
    assert await world.kube.evict(pod)
    assert await world.get(POD, "main-0") is None
    assert await world.kube.evict(pod)


async def test_a_patch_of_an_old_version(world: World) -> None:
    """It is a conflict; an invalid patch is not, though both are answered with 422."""
    namespace = world.namespace.replace("test", "orders")
    await world.kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    try:
        metadata = {"name": "main-0", "namespace": namespace}
        made = await world.kube.create({"apiVersion": "v1", "kind": "Secret", "metadata": metadata})
        label = {"op": "add", "path": "/metadata/labels", "value": {"seen": "yes"}}
        await world.kube.patch(made, label)
        with pytest.raises(ApiConflictError):
            await world.kube.patch(made, label)
        newest = await world.kube.get(SECRET, "main-0", namespace)
        assert newest is not None
        with pytest.raises(KubernetesError, match="config key") as refused:
            await world.kube.patch(newest, {"op": "add", "path": "/data", "value": {"a b": "eA=="}})
        assert not isinstance(refused.value, ApiConflictError)
        assert await world.kube.set_status(NAMESPACE, namespace, "", uid="another", status={}) is None
    finally:
        await world.kube.delete(NAMESPACE, namespace)
