"""The operator and its etcd, on a real API server: gone, replaced, malformed and full.

What takes more than a few seconds is for `make test-process`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from e2e.cluster.cluster_errors import ClusterError
from evenkeel.errors import NoSpaceError
from evenkeel.kube.object_kinds import (
    CONFIG_MAP,
    STATEFUL_SET,
    STORE_CLUSTER,
    TABLE,
    Object,
)
from evenkeel.metastore.etcd_maintenance import Maintenance, ReliefSchedule
from evenkeel.metastore.etcd_metastore import EtcdMetastore
from evenkeel.metastore.etcd_server import EtcdServer, find_etcd
from evenkeel.metastore.metastore_api import Delete, Put, Txn
from evenkeel.protocol.keys import Keys
from evenkeel_operator.manifests.pod_settings import CertManagerSettings, PodSettings
from evenkeel_operator.process import operator_process
from tests.kubernetes.world import World, make_table, store_cluster, table, uids
from tests.metastore.support import FAST_ELECTIONS, settings_for
from tests.metastore.test_etcd_maintenance import fill


@pytest.mark.processes
async def test_etcd_down_and_back(world: World, tmp_path: Path) -> None:
    """Without etcd the status reports it and nothing exits; with it, everything continues."""
    server = EtcdServer(tmp_path / "own-etcd", binary=find_etcd(), fsync=False, extra_args=FAST_ELECTIONS)
    async with server:
        world.etcd = world.pods.etcd = server.endpoint
        operator = world.start()
        await make_table(world)
        await server.terminate()
        await world.run("scale", "table/orders", "--replicas=1")
        await world.condition(TABLE, "orders", "Degraded", reason="MetastoreUnreachable")

        async def noticed() -> bool:
            return "etcd" in operator.health.unready()

        await world.until("the operator is not ready", noticed)
        assert operator.health.unhealthy() == ""
        await server.start()
        await world.condition(TABLE, "orders", "Degraded", status="False")
        await world.condition(TABLE, "orders", "Ready")


@pytest.mark.processes
async def test_an_etcd_at_another_address_is_adopted(world: World, tmp_path: Path) -> None:
    """Endpoints and the cluster id change in one update; pods are replaced, and no replica moves."""
    async with (
        EtcdServer(tmp_path / "first", binary=find_etcd(), fsync=False) as first,
        EtcdServer(tmp_path / "second", binary=find_etcd(), fsync=False) as second,
    ):
        world.pods.etcd = first.endpoint
        world.start()
        await world.apply(store_cluster(metastore={"endpoints": [first.endpoint]}))
        await world.condition(STORE_CLUSTER, "main", "Ready")
        await world.apply(table())
        await world.condition(TABLE, "orders", "Balanced")
        await world.condition(TABLE, "orders", "Ready")
        before, replicas = await uids(world), replicas_on_disks(world)
        async with EtcdMetastore(settings_for(second.endpoint)) as way:
            adopted = f"{await way.cluster_id():x}"
        world.pods.etcd = second.endpoint
        spec = {"metastore": {"endpoints": [second.endpoint]}}
        with pytest.raises(ClusterError, match="except its endpoints together with adoptMetastore"):
            await patch(world, spec)
        await patch(world, {**spec, "adoptMetastore": adopted})

        async def follows() -> bool:
            return bool((await world.get(STORE_CLUSTER, "main") or {})["status"]["metastore"]["clusterId"] == adopted)

        await world.until("the other etcd is followed", follows)

        async def replaced() -> bool:
            return all(uid != before[name] for name, uid in (await uids(world)).items())

        await world.until("all pods are replaced", replaced, within=120)
        await world.condition(STORE_CLUSTER, "main", "Ready")
        await world.condition(TABLE, "orders", "Ready")
        assert replicas_on_disks(world) == replicas
        await world.stop()
        await world.stop("pods")


def replicas_on_disks(world: World) -> Sequence[object]:
    return sorted((replica.id, *key) for disk in world.pods._disks.values() for key, replica in disk.replicas.items())


async def patch(world: World, spec: Object) -> None:
    text = msgspec.json.encode({"spec": spec}).decode()
    await world.run("patch", "storecluster/main", "--type=merge", f"--patch={text}")


@pytest.mark.processes
async def test_a_malformed_key_is_reported(world: World) -> None:
    """StoreCluster and Table name it, and nothing exits; once it is gone, so is the problem."""
    operator = world.start()
    await make_table(world)
    key = Keys(namespace=world.namespace, store_cluster="main").store_state("main-9")
    await world.metastore.txn(Txn(success=(Put(key, b"nothing"),)))
    for kind, name in ((STORE_CLUSTER, "main"), (TABLE, "orders")):
        found = await world.condition(kind, name, "Degraded", reason="MalformedRecord")
        assert key in str(found["status"]["conditions"])
    assert operator.health.unhealthy() == ""
    await world.metastore.txn(Txn(success=(Delete(key),)))
    for kind, name in ((STORE_CLUSTER, "main"), (TABLE, "orders")):
        await world.condition(kind, name, "Degraded", status="False")


async def test_a_cluster_without_cert_manager(world: World) -> None:
    """The status reports that cert-manager is not installed, and nothing exits."""
    world.start(pods=PodSettings(image="store:1", lease_seconds=2), cert_manager=CertManagerSettings())
    await world.apply(store_cluster())
    found = await world.condition(STORE_CLUSTER, "main", "Degraded", reason="ApiRefused")
    assert "cert-manager.io" in str(found["status"]["conditions"])
    assert await world.get(STATEFUL_SET, "main") is None


async def test_etcd_is_recorded_as_formed(world: World) -> None:
    """Once etcd has answered, the ConfigMap says so; its other keys stay."""
    note = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "etcd"},
        "data": {"etcd.yaml": "name: etcd-0"},
    }
    await world.apply(note)
    world.start(etcd_note="etcd")

    async def noted() -> bool:
        return "formed" in (await world.get(CONFIG_MAP, "etcd") or {})["data"]

    await world.until("etcd is recorded as formed", noted)
    assert (await world.get(CONFIG_MAP, "etcd") or {})["data"] == {"etcd.yaml": "name: etcd-0", "formed": "true"}


@pytest.mark.processes
async def test_space_is_freed_in_a_full_etcd(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The leading operator frees space in the bundled etcd, which then accepts writes again."""
    for seconds in ("_PING_SECONDS", "_RELIEF_SECONDS"):
        monkeypatch.setattr(operator_process, seconds, 0.2)
    quota = ("--quota-backend-bytes=4194304",)
    await world.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "etcd"}, "data": {}})
    async with EtcdServer(tmp_path / "own-etcd", binary=find_etcd(), fsync=False, extra_args=quota) as server:
        world.etcd = server.endpoint
        async with EtcdMetastore(settings_for(server.endpoint)) as way:
            await fill(way)
            operator = world.start(etcd_note="etcd")

            async def relieved() -> bool:
                return operator.health.etcd_reliefs == 1 and not operator.health.etcd_full

            await world.until("space is freed", relieved)
            assert (await way.txn(Txn(success=(Put("/after", b""),)))).succeeded
        await world.stop()


@pytest.mark.processes
async def test_an_etcd_that_stays_full_is_rarely_defragmented(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If nothing can be freed, the operator retries with increasing intervals."""
    attempts = []

    async def futile(self: Maintenance) -> bool:
        attempts.append(1)
        raise NoSpaceError("nothing can be freed")

    monkeypatch.setattr(Maintenance, "relieve", futile)
    checks, due = [], ReliefSchedule.due

    def counted(schedule: ReliefSchedule) -> bool:
        checks.append(1)
        return due(schedule)

    monkeypatch.setattr(ReliefSchedule, "due", counted)
    for seconds in ("_PING_SECONDS", "_RELIEF_SECONDS"):
        monkeypatch.setattr(operator_process, seconds, 0.05)
    await world.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "etcd"}, "data": {}})
    quota = ("--quota-backend-bytes=4194304",)
    async with EtcdServer(tmp_path / "own-etcd", binary=find_etcd(), fsync=False, extra_args=quota) as server:
        world.etcd = server.endpoint
        async with EtcdMetastore(settings_for(server.endpoint)) as way:
            await fill(way)
        world.start(etcd_note="etcd")

        async def checked_often() -> bool:
            return bool(attempts) and len(checks) > 100

        await world.until("a hundred checks", checked_often)
        assert len(attempts) <= 7
        await world.stop()
