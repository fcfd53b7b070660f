"""The reconciler of StoreClusters, with an API server in memory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, cast

import pytest

from evenkeel.errors import ApiForbiddenError, EvenkeelError, UnreachableError
from evenkeel.kube.kube_client import Kube
from evenkeel.kube.object_kinds import (
    NAMESPACE,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    SERVICE,
    STATEFUL_SET,
    STORE_CLUSTER,
    Kind,
    Object,
)
from evenkeel.metastore.memory_metastore import MemoryMetastore
from evenkeel.metastore.metastore_api import Delete, Put, Txn
from evenkeel.metastore.operator_epoch import Epoch, acquire_epoch
from evenkeel.model.storecluster import StoreCluster
from evenkeel.protocol.keys import Keys
from evenkeel.protocol.records import Peer, Stable, StoreRecord, StoreState, encode
from evenkeel.runtime.clock import VirtualClock
from evenkeel_operator.identity.metastore_connections import Credentials, Metastores
from evenkeel_operator.identity.store_certificates import NoCertificates
from evenkeel_operator.kinds import OWNER_FIELDS
from evenkeel_operator.kube.kube_status_writer import KubeStatusWriter
from evenkeel_operator.kube.object_cache import Cache
from evenkeel_operator.kube.resource_reader import FINALIZER, Reader
from evenkeel_operator.manifests.object_names import OWNER_ANNOTATION, STORE_CLUSTER_LABEL
from evenkeel_operator.manifests.pod_settings import MetastoreAccess, PodSettings
from evenkeel_operator.reconcilers.cluster_controllers import ClusterControllers
from evenkeel_operator.reconcilers.kube_resources import KubeResources
from evenkeel_operator.reconcilers.operator_context import OperatorContext, caching_applier
from evenkeel_operator.reconcilers.store_cluster_reconciler import StoreClusterReconciler
from evenkeel_operator.reconcilers.store_cluster_status import StoreClusterStatuses
from evenkeel_operator.reconcilers.volume_claims import EMPTIED_ANNOTATION
from tests.kube_operator.support import FakeKube

KEY = ("shop", "main")
KEYS = Keys(namespace="shop", store_cluster="main")


class HookedKube(FakeKube):
    """Lets a test act in the middle of a reconciliation."""

    def __init__(self) -> None:
        super().__init__()
        self.before_applying: dict[str, Callable[[], None]] = {}

    async def get(self, kind: Kind, name: str, namespace: str = "") -> Object | None:
        self.before_applying.pop(kind.name, lambda: None)()
        return await super().get(kind, name, namespace)


class FakeControllers:
    """Replaces the controllers and the connections to etcd."""

    def __init__(self, metastore: MemoryMetastore) -> None:
        self._metastore = metastore
        self.follows = True
        self.held: Epoch | None = None

    async def of(self, cluster: StoreCluster) -> MemoryMetastore:
        return self._metastore

    async def for_pods(self, cluster: StoreCluster) -> tuple[MetastoreAccess, Credentials]:
        return MetastoreAccess(endpoints=("http://etcd:2379",)), {}

    async def ensure(self, cluster: StoreCluster) -> None: ...

    async def stop(self, key: object) -> None: ...

    def notify(self, key: object, table: str | None = None) -> None: ...

    def last_status(self, key: object) -> None: ...

    def assignments(self, key: object) -> None: ...

    def following(self, key: object) -> bool:
        return self.follows

    def epoch(self, key: object) -> Epoch | None:
        return self.held


class Scene:
    """A StoreCluster `main`; pods are not created."""

    def __init__(self, stores: int = 3, *, api: HookedKube | None = None) -> None:
        self.kube, self.cache, self.metastore = api or HookedKube(), Cache(OWNER_FIELDS), MemoryMetastore()
        self.statuses = KubeStatusWriter(cast(Kube, self.kube), self.cache, clock=VirtualClock())
        self.reader = Reader(self.statuses)
        self.controllers = FakeControllers(self.metastore)
        controllers = cast(ClusterControllers, self.controllers)
        kube = cast(Kube, self.kube)
        self.reconciler = StoreClusterReconciler(
            OperatorContext(
                kube=kube,
                cache=self.cache,
                statuses=self.statuses,
                reader=self.reader,
                applier=caching_applier(kube, self.cache),
                settings=PodSettings(image="store:1", tls=False),
                seed=b"s" * 32,
                certificates=NoCertificates(),
                metastores=cast(Metastores, self.controllers),
                controllers=controllers,
                cluster_statuses=StoreClusterStatuses(self.cache, self.statuses, self.reader, controllers),
            )
        )
        spec = {"stores": stores, "storage": {"size": "1Gi"}}
        metadata = self.kube.add(STORE_CLUSTER, "main", spec=spec)["metadata"]
        metadata |= {"generation": 1, "finalizers": [FINALIZER]}
        self._put({"apiVersion": STORE_CLUSTER.api_version, "kind": "StoreCluster", "metadata": metadata, "spec": spec})

    def _put(self, subject: Object) -> None:
        self.cache.put(STORE_CLUSTER, self.kube._keep((STORE_CLUSTER, *KEY), subject))

    def change(self, *, metadata: Object | None = None, **spec: Any) -> None:
        """Change the spec as a user does, and deliver the watch event."""
        live = self.kube.objects[STORE_CLUSTER, "shop", "main"]
        changed = {**live["metadata"], "generation": live["metadata"]["generation"] + 1, **(metadata or {})}
        self._put({**live, "metadata": changed, "spec": {**live["spec"], **spec}})

    def see(self) -> None:
        """Deliver the watch event of the StatefulSet."""
        self.cache.put(STATEFUL_SET, self.kube.objects[STATEFUL_SET, "shop", "main"])

    async def empty(self, *numbers: int) -> None:
        """Record stores as drained."""
        for number in numbers:
            state = StoreState(volume="v", draining=True, record=StoreRecord(volume="v"))
            await self.metastore.txn(Txn(success=(Put(KEYS.store_state(f"main-{number}"), encode(state)),)))

    def claim(self, number: int, *, owner: str | None = "uid-main", **annotations: str) -> Object:
        """Add the claim of a store, and deliver its watch event."""
        size = {"resources": {"requests": {"storage": "1Gi"}}}
        made = self.kube.add(PERSISTENT_VOLUME_CLAIM, f"data-main-{number}", spec=size)
        whose = {OWNER_ANNOTATION: owner} if owner is not None else {}
        made["metadata"] |= {"labels": {STORE_CLUSTER_LABEL: "main"}, "annotations": {**whose, **annotations}}
        kept = self.kube._keep((PERSISTENT_VOLUME_CLAIM, "shop", f"data-main-{number}"), made)
        self.cache.put(PERSISTENT_VOLUME_CLAIM, kept)
        return kept

    @property
    def claims(self) -> dict[str, str]:
        """The mark of an emptied store, by the name of its claim."""
        found = {name: o for (kind, _, name), o in self.kube.objects.items() if kind == PERSISTENT_VOLUME_CLAIM}
        return {name: o["metadata"]["annotations"].get(EMPTIED_ANNOTATION, "") for name, o in sorted(found.items())}

    async def hold(self, number: int) -> None:
        """Put a partition on a store."""
        stable = Put(KEYS.partition("t.1", 0).stable, encode(Stable((Peer(f"main-{number}", "v", 1),))))
        await self.metastore.txn(Txn(success=(stable,)))

    async def reconcile(self) -> float | None:
        if self.controllers.held is None:
            self.controllers.held = await acquire_epoch(self.metastore, KEYS.epoch, "tests")
        return await self.reconciler.reconcile(KEY)

    @property
    def replicas(self) -> int:
        return int(self.kube.objects[STATEFUL_SET, "shop", "main"]["spec"]["replicas"])


async def test_emptied_stores_are_removed() -> None:
    """Stores that hold replicas, or are not drained, stay."""
    scene = Scene(stores=5)
    await scene.reconcile()
    scene.change(stores=3)
    await scene.reconcile()
    assert scene.replicas == 5 - 2, "they never registered, so they hold nothing"
    scene.change(stores=5)
    await scene.reconcile()
    await scene.metastore.txn(Txn(success=(Put(KEYS.store("main-3"), encode(StoreRecord(volume="v"))),)))
    scene.change(stores=3)
    await scene.reconcile()
    assert scene.replicas == 4, "main-3 is registered, and was not drained"


async def test_another_etcd_removes_no_store() -> None:
    """An empty etcd names no store, which says nothing about what stores hold."""
    scene = Scene(stores=5)
    await scene.reconcile()
    scene.controllers.follows = False
    scene.change(stores=3)
    await scene.reconcile()
    assert scene.replicas == 5
    scene.controllers.follows = True
    await scene.reconcile()
    assert scene.replicas == 3


async def test_stores_that_are_desired_again_during_a_reconciliation_stay() -> None:
    """They may be given replicas from then on, though they were empty at its start."""
    scene = Scene(stores=5)
    await scene.reconcile()
    await scene.empty(3, 4)
    scene.change(stores=3)
    scene.reconciler._context.applier.forget()
    scene.kube.before_applying[SERVICE.name] = lambda: scene.change(stores=5)
    await scene.reconcile()
    assert scene.replicas == 5


async def test_a_written_set_is_known_before_its_watch_event() -> None:
    """A scale-down right after a scale-up does not remove stores that no watch has delivered."""
    scene = Scene(stores=3)
    await scene.reconcile()
    scene.see()
    scene.change(stores=5)
    await scene.reconcile()
    await scene.metastore.txn(Txn(success=(Put(KEYS.store("main-4"), encode(StoreRecord(volume="v"))),)))
    scene.change(stores=3, healing="Manual")
    await scene.reconcile()
    assert scene.replicas == 5


class RigidVolumes(HookedKube):
    """Has volumes that cannot grow."""

    async def merge(self, kind: Kind, name: str, namespace: str, patch: Object) -> Object:
        if kind == PERSISTENT_VOLUME_CLAIM and "spec" in patch:
            raise ApiForbiddenError("only dynamically provisioned pvc can be resized", status=403)
        return await super().merge(kind, name, namespace, patch)


async def test_volumes_that_cannot_grow_block_nothing() -> None:
    """Pods must still be replaced in time to renew their certificates."""
    scene = Scene(api=RigidVolumes())
    await scene.reconcile()
    live = scene.kube.objects[STATEFUL_SET, *KEY]
    live |= {"status": {"updateRevision": "new", "observedGeneration": 1}}
    live["metadata"] |= {"generation": 1, "resourceVersion": "1000"}
    scene.see()
    labels = {STORE_CLUSTER_LABEL: "main", "controller-revision-hash": "old"}
    for number in range(3):
        status = {"conditions": [{"type": "Ready", "status": "True"}]}
        made = scene.kube.add(POD, f"main-{number}", spec={}, status=status)
        scene.cache.put(POD, {**made, "metadata": {**made["metadata"], "labels": labels}})
    size = {"resources": {"requests": {"storage": "500Mi"}}}
    claim = scene.kube.add(PERSISTENT_VOLUME_CLAIM, "data-main-0", spec=size)
    scene.cache.put(PERSISTENT_VOLUME_CLAIM, {**claim, "metadata": {**claim["metadata"], "labels": labels}})
    with pytest.raises(EvenkeelError, match="dynamically provisioned"):
        await scene.reconcile()
    assert "evict main-2" in scene.kube.calls


async def test_an_invalid_store_cluster_can_be_deleted() -> None:
    """Nothing is left behind because of an invalid spec."""
    scene = Scene()
    await scene.reconcile()
    scene.see()
    await scene.empty(0)
    scene.change(throttles={"bytesPerSecond": 0})
    await scene.reconcile()
    conditions = scene.statuses.of(scene.cache.get(STORE_CLUSTER, *KEY) or {})["conditions"]
    assert [entry["reason"] for entry in conditions if entry["type"] == "Degraded"] == ["SpecInvalid"]
    scene.change(metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})
    await scene.reconcile()
    assert (STATEFUL_SET, *KEY) not in scene.kube.objects
    scene.cache.remove(STATEFUL_SET, scene.cache.get(STATEFUL_SET, *KEY) or {})
    await scene.reconcile()
    assert (STORE_CLUSTER, *KEY) not in scene.kube.objects
    assert (await scene.metastore.range(KEYS.stores())).kvs == ()


async def test_an_invalid_spec_keeps_the_previous_one() -> None:
    """The controller continues with the last valid StoreCluster."""
    scene = Scene()
    resources = KubeResources(
        cast(Kube, scene.kube),
        scene.cache,
        scene.statuses,
        scene.reader,
        cluster=KEY,
        with_node_zones=lambda cluster: cluster,
        describe=lambda _, status: status,
    )
    before = await resources.store_cluster()
    assert before is not None
    scene.change(stores=2, throttles={"bytesPerSecond": 0})
    after = await resources.store_cluster()
    assert after is not None
    assert after.spec == before.spec
    scene.change(metadata={"uid": "another"})
    assert await resources.store_cluster() is None


# Volumes


async def scaled_down(*, claims: int = 5) -> Scene:
    """A StoreCluster that was scaled from five stores to three, before a reconciliation."""
    scene = Scene(stores=5)
    await scene.reconcile()
    scene.see()
    for number in range(claims):
        scene.claim(number)
    await scene.empty(3, 4)
    scene.change(stores=3)
    return scene


async def test_claims_of_emptied_stores_are_marked_and_then_deleted() -> None:
    """Marked while the metastore records the drain; deleted when their pods are gone."""
    scene = await scaled_down()
    pod = scene.kube.add(POD, "main-3", spec={}, status={})
    pod["metadata"]["labels"] = {STORE_CLUSTER_LABEL: "main"}
    scene.cache.put(POD, pod)
    await scene.reconcile()
    assert scene.replicas == 3
    assert scene.claims == {"data-main-0": "", "data-main-1": "", "data-main-2": "", "data-main-3": "v"}
    scene.cache.remove(POD, pod)
    await scene.reconcile()
    assert [*scene.claims] == ["data-main-0", "data-main-1", "data-main-2"]


async def test_a_registered_store_keeps_its_claim() -> None:
    """Its process may still run, though its pod is gone from the cache."""
    scene = await scaled_down()
    await scene.metastore.txn(Txn(success=(Put(KEYS.store("main-3"), encode(StoreRecord(volume="v"))),)))
    await scene.reconcile()
    assert "data-main-3" in scene.claims
    assert "data-main-4" not in scene.claims


async def test_a_store_with_replicas_keeps_pod_and_claim() -> None:
    """Its pod is recreated after a manual scale-down of the StatefulSet."""
    scene = await scaled_down()
    await scene.hold(3)
    live = scene.kube.objects[STATEFUL_SET, *KEY]
    live["spec"]["replicas"] = 0
    live["metadata"]["resourceVersion"] = "1000"
    scene.see()
    await scene.reconcile()
    assert scene.replicas == 4
    assert scene.claims["data-main-3"] == ""


@pytest.mark.parametrize("how", ["an empty metastore", "an unreachable metastore", "a StatefulSet that was deleted"])
async def test_without_confirmation_of_the_metastore_no_claim_is_deleted(how: str) -> None:
    """A lost metastore has no record of stores, which does not confirm that volumes are empty."""
    scene = await scaled_down()
    if how == "an empty metastore":
        await scene.metastore.txn(Txn(success=(Delete(KEYS.root, prefix=True),)))
    elif how == "an unreachable metastore":

        async def unreachable(*_: object, **__: object) -> None:
            raise UnreachableError("no endpoint answers")

        scene.metastore.range = unreachable  # type: ignore[method-assign, assignment]
    else:
        scene.cache.remove(STATEFUL_SET, scene.cache.get(STATEFUL_SET, *KEY) or {})
        del scene.kube.objects[STATEFUL_SET, *KEY]
        await scene.hold(4)
    for _ in range(3):
        with contextlib.suppress(EvenkeelError):
            await scene.reconcile()
        scene.reconciler._context.applier.forget()
    assert len(scene.claims) == 5
    if how != "an empty metastore":
        assert scene.replicas == 5


async def test_a_store_that_returns_loses_its_mark() -> None:
    """The mark is removed before its pod is created, so that its new data is not deleted."""
    scene = await scaled_down()
    scene.claim(3, **{EMPTIED_ANNOTATION: "v"})
    stale = scene.cache.get(PERSISTENT_VOLUME_CLAIM, "shop", "data-main-3")
    scene.change(stores=5)
    await scene.reconcile()
    assert scene.replicas == 5
    assert scene.claims["data-main-3"] == ""
    assert stale is not None
    assert not await scene.kube.delete_exactly(stale), "an operator that was replaced in between deletes nothing"


async def test_nothing_of_a_paused_store_cluster_is_deleted() -> None:
    """Neither claims of emptied stores, nor anything on deletion, unless that is forced or the namespace goes."""
    scene = await scaled_down()
    scene.change(paused=True)
    await scene.reconcile()
    assert set(scene.claims.values()) == {""}
    scene.change(metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})
    scene.kube.add(NAMESPACE, "shop", "")
    await scene.reconcile()
    conditions = scene.statuses.of(scene.cache.get(STORE_CLUSTER, *KEY) or {})["conditions"]
    assert [entry["reason"] for entry in conditions if entry["type"] == "Degraded"] == ["Paused"]
    assert len(scene.claims) == 5
    assert (STATEFUL_SET, *KEY) in scene.kube.objects
    scene.kube.objects[NAMESPACE, "", "shop"]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    await scene.reconcile()
    assert (STATEFUL_SET, *KEY) not in scene.kube.objects


async def test_claims_of_a_store_cluster_of_the_same_name() -> None:
    """They are neither used nor deleted; claims of earlier releases are adopted."""
    scene = Scene(stores=1)
    scene.claim(0, owner="another")
    with pytest.raises(EvenkeelError, match=r"PersistentVolumeClaim shop/data-main-0 exists already"):
        await scene.reconcile()
    assert (STATEFUL_SET, *KEY) not in scene.kube.objects
    scene.claim(0, owner=None)
    await scene.reconcile()
    found = scene.kube.objects[PERSISTENT_VOLUME_CLAIM, "shop", "data-main-0"]
    assert found["metadata"]["annotations"][OWNER_ANNOTATION] == "uid-main"
