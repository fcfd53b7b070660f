"""A local cluster whose etcd exceeded its quota frees space by itself and serves tables in the meantime."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from evenkeel.client.aio import AsyncClient
from evenkeel.errors import NoSpaceError, UnreachableError
from evenkeel.local import supervisor
from evenkeel.local.cluster_directory import Layout
from evenkeel.local.local_resources import LocalResources
from evenkeel.metastore.etcd_maintenance import Maintenance
from evenkeel.metastore.etcd_metastore import EtcdMetastore
from evenkeel.metastore.etcd_settings import EtcdSettings
from evenkeel.metastore.metastore_api import Put, Txn
from evenkeel.model.resource_loading import load_yaml
from evenkeel.model.table import Table
from tests.process.test_local import TABLE

CLUSTER = """\
apiVersion: evenkeel.dev/v1alpha1
kind: StoreCluster
metadata: {name: main}
spec: {stores: 1, storage: {size: 1Gi}}
"""


@pytest.mark.parametrize("restart", [False, True], ids=["running", "restarted"])
async def test_a_local_cluster_survives_a_full_etcd(
    new_directory: Callable[[], Path], monkeypatch: pytest.MonkeyPatch, restart: bool
) -> None:
    """Rows are read and written while etcd is full; soon tables can be created again, also after a restart."""
    monkeypatch.setattr(supervisor, "_ETCD_ARGUMENTS", (f"--quota-backend-bytes={8 << 20}",))
    monkeypatch.setattr(supervisor, "_RELIEF_SECONDS", 0.2)
    gate, relieve = asyncio.Event(), Maintenance.relieve

    async def when_allowed(maintenance: Maintenance) -> bool:
        await gate.wait()
        return await relieve(maintenance)

    monkeypatch.setattr(Maintenance, "relieve", when_allowed)
    layout = Layout(new_directory())
    layout.make()
    layout.make_sockets()
    running = asyncio.create_task(supervisor.Supervisor(layout).run())
    try:
        async with EtcdMetastore(await started(layout)) as metastore:
            await apply(metastore, CLUSTER)
            await apply(metastore, TABLE.format(name="steady", replicas=1, more=""))
            await ready(metastore, "steady")
            await fill(metastore)
            flight = f"grpc://127.0.0.1:{layout.ports().stores['main-0'].flight}"
            async with AsyncClient([flight]) as client:
                table = client.table("steady")
                await table.upsert([{"id": 1, "word": "while it is full"}])
                assert await table.count() == 1
            assert not running.done()
        if restart:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            running = asyncio.create_task(supervisor.Supervisor(layout).run())
        gate.set()
        async with EtcdMetastore(await started(layout)) as metastore:
            await until_space(metastore)
            await apply(metastore, TABLE.format(name="later", replicas=1, more=""))
            await ready(metastore, "later")
        assert not running.done()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        shutil.rmtree(layout.sockets, ignore_errors=True)


async def started(layout: Layout) -> EtcdSettings:
    """Wait until etcd answers; return its settings."""
    async with asyncio.timeout(60):
        while True:
            if (ports := layout.ports().etcd) is not None:
                settings = EtcdSettings(endpoints=(f"http://127.0.0.1:{ports[0]}",))
                with contextlib.suppress(UnreachableError):
                    async with EtcdMetastore(settings) as metastore:
                        await metastore.get("/")
                        return settings
            await asyncio.sleep(0.1)


async def apply(metastore: EtcdMetastore, text: str) -> None:
    for resource in load_yaml(text):
        await LocalResources(metastore).apply(resource)


async def ready(metastore: EtcdMetastore, name: str) -> None:
    async with asyncio.timeout(90):
        while True:
            tables = await LocalResources(metastore).all_of(Table)
            status = next(table.status for table in tables if table.metadata.name == name)
            if status is not None and any(c.type == "Ready" and c.status == "True" for c in status.conditions):
                return
            await asyncio.sleep(0.1)


async def fill(metastore: EtcdMetastore) -> None:
    with contextlib.suppress(NoSpaceError):
        for _ in range(200):
            await metastore.txn(Txn(success=(Put("/filling", bytes(500_000)),)))
        raise AssertionError("the quota is not used up")


async def until_space(metastore: EtcdMetastore) -> None:
    async with asyncio.timeout(60):
        while True:
            if not await metastore.full():
                return
            await asyncio.sleep(0.1)
