"""Looks at StoreClusters, before an API server that is a dictionary."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from evenkeel.errors import ApiForbiddenError, EvenkeelError
from evenkeel.kube.client import Answer, Kube
from evenkeel.kube.kinds import (
    PERSISTENT_VOLUME_CLAIM,
    POD,
    SERVICE,
    STATEFUL_SET,
    STORE_CLUSTER,
    Kind,
    Object,
)
from evenkeel.metastore.api import Put, Txn
from evenkeel.metastore.clock import VirtualClock
from evenkeel.metastore.memory import MemoryMetastore
from evenkeel.model.storecluster import StoreCluster
from evenkeel.protocol.keys import Keys
from evenkeel.protocol.records import StoreRecord, StoreState, encode
from evenkeel_operator.cache import Cache
from evenkeel_operator.certificates import NoCertificates
from evenkeel_operator.clusters import ClusterKeeper
from evenkeel_operator.controllers import Controllers
from evenkeel_operator.manifests.names import STORE_CLUSTER_LABEL
from evenkeel_operator.manifests.settings import MetastoreAccess, PodSettings
from evenkeel_operator.metastores import Credentials, Metastores
from evenkeel_operator.reading import FINALIZER, Reader
from evenkeel_operator.resources import KubeResources
from evenkeel_operator.statuses import Statuses
from tests.kube_operator.support import FakeKube

KEY = ("shop", "main")
KEYS = Keys(namespace="shop", store_cluster="main")


class TellingKube(FakeKube):
    """Lets a test do something in the middle of a look."""

    def __init__(self) -> None:
        super().__init__()
        self.before_applying: dict[str, Callable[[], None]] = {}

    async def apply(self, subject: Object, *, force: bool = False) -> Answer:
        self.before_applying.pop(subject["kind"], lambda: None)()
        return await super().apply(subject, force=force)


class Nobody:
    """In place of controllers and of the ways to etcd."""

    def __init__(self, metastore: MemoryMetastore) -> None:
        self._metastore = metastore

    async def of(self, cluster: StoreCluster) -> MemoryMetastore:
        return self._metastore

    async def for_pods(self, cluster: StoreCluster) -> tuple[MetastoreAccess, Credentials]:
        return MetastoreAccess(endpoints=("http://etcd:2379",)), {}

    async def ensure(self, cluster: StoreCluster) -> None: ...

    async def dismiss(self, key: object) -> None: ...

    def hear(self, key: object, table: str | None = None) -> None: ...

    def last_status(self, key: object) -> None: ...

    def assignments(self, key: object) -> None: ...

    def epoch(self, key: object) -> None: ...


class Scene:
    """A StoreCluster `main`, and nobody who makes pods."""

    def __init__(self, stores: int = 3, *, kube: TellingKube | None = None) -> None:
        self.kube, self.cache, self.metastore = kube or TellingKube(), Cache(), MemoryMetastore()
        self.statuses = Statuses(cast(Kube, self.kube), self.cache, clock=VirtualClock())
        self.reader = Reader(self.statuses)
        nobody = Nobody(self.metastore)
        self.keeper = ClusterKeeper(
            cast(Kube, self.kube),
            self.cache,
            self.statuses,
            self.reader,
            settings=PodSettings(image="store:1", tls=False),
            seed=b"s" * 32,
            certificates=NoCertificates(),
            metastores=cast(Metastores, nobody),
            controllers=cast(Controllers, nobody),
        )
        spec = {"stores": stores, "storage": {"size": "1Gi"}}
        metadata = self.kube.add(STORE_CLUSTER, "main", spec=spec)["metadata"]
        metadata |= {"generation": 1, "finalizers": [FINALIZER]}
        self._put({"apiVersion": STORE_CLUSTER.api_version, "kind": "StoreCluster", "metadata": metadata, "spec": spec})

    def _put(self, subject: Object) -> None:
        self.cache.put(STORE_CLUSTER, self.kube._keep((STORE_CLUSTER, *KEY), subject))

    def change(self, *, metadata: Object | None = None, **spec: Any) -> None:
        """As a user does, and as the watch tells."""
        live = self.kube.objects[STORE_CLUSTER, "shop", "main"]
        changed = {**live["metadata"], "generation": live["metadata"]["generation"] + 1, **(metadata or {})}
        self._put({**live, "metadata": changed, "spec": {**live["spec"], **spec}})

    def see(self) -> None:
        """Let the watch of StatefulSets tell."""
        self.cache.put(STATEFUL_SET, self.kube.objects[STATEFUL_SET, "shop", "main"])

    async def empty(self, *numbers: int) -> None:
        """Stores that were told to be emptied, and are."""
        for number in numbers:
            state = StoreState(volume="v", draining=True, record=StoreRecord(volume="v"))
            await self.metastore.txn(Txn(success=(Put(KEYS.store_state(f"main-{number}"), encode(state)),)))

    async def look(self) -> float | None:
        return await self.keeper.look(KEY)

    @property
    def replicas(self) -> int:
        return int(self.kube.objects[STATEFUL_SET, "shop", "main"]["spec"]["replicas"])


async def test_stores_that_were_emptied_go() -> None:
    """And no others."""
    scene = Scene(stores=5)
    await scene.look()
    scene.change(stores=3)
    await scene.look()
    assert scene.replicas == 5 - 2, "nobody knows them, so nothing is on them"
    scene.change(stores=5)
    await scene.look()
    await scene.metastore.txn(Txn(success=(Put(KEYS.store("main-3"), encode(StoreRecord(volume="v"))),)))
    scene.change(stores=3)
    await scene.look()
    assert scene.replicas == 4, "main-3 is there, and was not told to be emptied"


async def test_stores_that_are_wanted_again_in_the_middle_of_a_look_stay() -> None:
    """From that moment on they may be given something, though they were empty when the look began."""
    scene = Scene(stores=5)
    await scene.look()
    await scene.empty(3, 4)
    scene.change(stores=3)
    scene.keeper.forget_applied()
    scene.kube.before_applying[SERVICE.name] = lambda: scene.change(stores=5)
    await scene.look()
    assert scene.replicas == 5


async def test_what_was_written_is_known_before_a_watch_tells() -> None:
    """Who asks for other pods and for fewer of them at once does not lose stores that no watch has told of."""
    scene = Scene(stores=3)
    await scene.look()
    scene.see()
    scene.change(stores=5)
    await scene.look()
    await scene.metastore.txn(Txn(success=(Put(KEYS.store("main-4"), encode(StoreRecord(volume="v"))),)))
    scene.change(stores=3, healing="Manual")
    await scene.look()
    assert scene.replicas == 5


class Rigid(TellingKube):
    """Has volumes that do not grow."""

    async def merge(self, kind: Kind, name: str, namespace: str, patch: Object) -> Object:
        if kind == PERSISTENT_VOLUME_CLAIM:
            raise ApiForbiddenError("only dynamically provisioned pvc can be resized", status=403)
        return await super().merge(kind, name, namespace, patch)


async def test_volumes_that_cannot_grow_hold_up_nothing() -> None:
    """A size cannot be taken back, and pods have to be replaced in time for their certificates to be renewed."""
    scene = Scene(kube=Rigid())
    await scene.look()
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
        await scene.look()
    assert "evict main-2" in scene.kube.calls


async def test_what_cannot_be_read_can_be_deleted() -> None:
    """Nothing of a StoreCluster stays behind because its spec is none any more."""
    scene = Scene()
    await scene.look()
    scene.see()
    await scene.empty(0)
    scene.change(throttles={"bytesPerSecond": 0})
    await scene.look()
    told = scene.statuses.of(scene.cache.get(STORE_CLUSTER, *KEY) or {})["conditions"]
    assert [entry["reason"] for entry in told if entry["type"] == "Degraded"] == ["SpecInvalid"]
    scene.change(metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})
    await scene.look()
    assert (STATEFUL_SET, *KEY) not in scene.kube.objects
    scene.cache.remove(STATEFUL_SET, scene.cache.get(STATEFUL_SET, *KEY) or {})
    await scene.look()
    assert (STORE_CLUSTER, *KEY) not in scene.kube.objects
    assert (await scene.metastore.range(KEYS.stores())).kvs == ()


async def test_what_cannot_be_read_leaves_in_force_what_could() -> None:
    """The controller goes on with the StoreCluster of before, not without one."""
    scene = Scene()
    resources = KubeResources(
        cast(Kube, scene.kube),
        scene.cache,
        scene.statuses,
        scene.reader,
        cluster=KEY,
        seen_as=lambda cluster: cluster,
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
