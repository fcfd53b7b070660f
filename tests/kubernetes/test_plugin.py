"""`kubectl evenkeel` on a real API server, with a running operator."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner, Result

from e2e.cluster.binaries import find
from e2e.cluster.control_plane import api_server
from e2e.cluster.kubectl import Kubectl
from evenkeel.cli.app import plugin
from evenkeel.client.aio import AsyncClient
from evenkeel.errors import EvenkeelError
from evenkeel.kube.object_kinds import POD, REBALANCE_PLAN, TABLE, Object
from evenkeel.protocol.records import Leader, StoreRecord, encode
from tests.kubernetes.kubelet import kubelet
from tests.kubernetes.world import World, make_table, partitions_of, store_cluster
from tests.store.serving import KEYS, ORDERS, Store, table_record

PROGRAMS = Path(sys.executable).parent


async def plugged(world: World, *arguments: str) -> str:
    """Run the plugin, and return its output."""
    result = await attempt(world, *arguments)
    if result.exception is not None:
        raise result.exception
    return str(result.stdout)


async def refused(world: World, *arguments: str) -> str:
    """Run the plugin, and return its error."""
    result = await attempt(world, *arguments)
    assert isinstance(result.exception, EvenkeelError), result
    return str(result.exception)


async def attempt(world: World, *arguments: str, kubeconfig: Path | None = None) -> Result:
    where = [f"--kubeconfig={kubeconfig or world.kubectl.kubeconfig}", f"--namespace={world.namespace}"]
    return await asyncio.to_thread(lambda: CliRunner().invoke(plugin, [*arguments, *where]))


async def test_status(world: World) -> None:
    """It has tables, their partitions and problems, for people and for programs."""
    world.start()
    await make_table(world, partitions=4)
    found = json.loads(await plugged(world, "partitions", "orders", "-o", "json"))
    assert [one["stage"] for one in found] == 4 * ["Stable"]
    head, row, stores = (await plugged(world, "status")).splitlines()
    assert head.split()[:3] == ["NAME", "READY", "PARTITIONS"]
    assert row.split()[:4] == ["orders", "True", "4", "3/3"]
    assert stores == "storecluster main: 3/3 stores, 1 tables, 12 replicas, version 2"
    status = json.loads(await plugged(world, "status", "--output", "json"))
    assert [found["metadata"]["name"] for found in status["tables"]] == ["orders"]
    lines = (await plugged(world, "partitions", "table/orders")).splitlines()
    assert lines[0].split()[:3] == ["PARTITION", "LEADER", "STAGE"]
    assert lines[4].split()[0] == "3"
    assert "main-0" in lines[4]


async def test_a_dry_run_changes_nothing(world: World) -> None:
    """The operator answers a dry run, which is removed afterwards; an impossible one fails with a reason."""
    world.start()
    await make_table(world, stores=5)
    plan = json.loads(await plugged(world, "plan", "orders", "--replicas", "5", "-o", "json"))
    number = plan["number"]
    assert number == (await world.get(TABLE, "orders") or {})["status"]["plan"] + 1
    assert (plan["sameAs"], plan["totals"]["moves"]) == (None, 8)
    assert {move["from"] for move in plan["moves"]} == {None}
    said = await plugged(world, "plan", "orders", "--replicas", "5")
    assert f"plan {number} would have 8 moves in 4 partitions" in said
    assert "replicas 9 need 9 stores" in await refused(world, "plan", "orders", "--replicas", "9")
    left = (await world.kube.list(REBALANCE_PLAN, world.namespace)).items
    assert [plan["metadata"]["name"] for plan in left if plan["spec"].get("dryRun")] == []
    assert (await world.get(TABLE, "orders") or {})["spec"]["replicas"] == 3


async def test_a_store_is_drained_and_undrained(world: World) -> None:
    """It holds nothing when the command returns; after `undrain` it takes replicas again."""
    world.start()
    await make_table(world, stores=4)
    said = await plugged(world, "drain", "main-1", "--wait")
    assert said.splitlines() == ["store main-1 draining", "store main-1 drained"]
    assert not await world.is_named("main-1")
    assert await plugged(world, "undrain", "main-1") == "store main-1 undrained\n"

    async def back() -> bool:
        return await world.is_named("main-1")

    await world.until("main-1 holds something again", back)


async def test_a_leader_is_transferred(world: World) -> None:
    """The named store leads; a store without a vote is rejected."""
    world.start()
    await make_table(world, partitions=1)

    async def led() -> str:
        return str((await partitions_of(world))[0].get("leader", ""))

    leader = await led()
    wanted = next(store for store in ("main-0", "main-1") if store != leader)
    assert await plugged(world, "hand-over", "orders", "0", wanted) == (
        f"partition 0 of table orders: leadership is being handed over to {wanted}\n"
    )

    async def moved() -> bool:
        return await led() == wanted

    await world.until("another leads", moved)
    assert "allowed: a voter of partition 0" in await refused(world, "hand-over", "orders", "0", "main-7")
    assert "allowed: 0 to 0" in await refused(world, "hand-over", "orders", "5", "main-0")


@pytest.mark.processes
async def test_a_paused_table_stays_as_it_is(world: World) -> None:
    """No move starts until it is resumed."""
    world.start()
    await make_table(world, stores=4)
    assert "paused" in await plugged(world, "pause", "table/orders")
    await world.condition(TABLE, "orders", "Progressing", status="False", reason="Paused")
    await world.run("scale", "table/orders", "--replicas=4")
    assert "Paused" in await plugged(world, "status")
    await plugged(world, "resume", "orders")
    await plugged(world, "wait", "orders", "--for", "Balanced", "--timeout", "60")
    assert (await world.get(TABLE, "orders") or {})["status"]["replicas"] == 4


@pytest.mark.processes
async def test_a_plan_is_approved(world: World) -> None:
    """The plan that waited is the one that starts."""
    world.start()
    await make_table(world, stores=4, approval="Manual")
    await world.run("scale", "table/orders", "--replicas=4")

    async def waits() -> str:
        _, waiting, hint = (await plugged(world, "plan", "orders")).partition(
            " awaits approval: run `kubectl evenkeel approve "
        )
        return hint.strip().removesuffix("`") if waiting else ""

    plan = await world.until("the plan awaits approval", waits)
    assert "4 moves" in await plugged(world, "approve", plan)
    await plugged(world, "wait", "orders", "--for", "Balanced", "--timeout", "60")
    assert (await world.get(TABLE, "orders") or {})["status"]["replicas"] == 4


async def test_a_table_is_force_deleted(world: World) -> None:
    """A deletion waits for a lost store to confirm the drop, until it is forced."""
    world.start()
    await make_table(world, undeleteFor="0s")
    assert "is not being deleted" in await refused(world, "force-delete", "table/orders")
    await world.pods.kill("main-1")
    await world.run("delete", "table/orders", "--wait=false")

    async def waits() -> bool:
        return [key for key in await world.keys() if "orders" in key] == [
            key for key in await world.keys() if key.startswith("tables.dropped/orders")
        ]

    await world.until("only a tombstone is left", waits)
    assert await world.get(TABLE, "orders") is not None
    assert await plugged(world, "force-delete", "table/orders") == "table.evenkeel.dev/orders deleted\n"
    assert [key for key in await world.keys() if "orders" in key] == []


@pytest.mark.processes
async def test_watching(world: World) -> None:
    """kubectl finds the plugin; `-w` prints again on a change, and Ctrl-C exits with 0."""
    world.start()
    await make_table(world, stores=4)
    environment = {**os.environ, "KUBECONFIG": str(world.kubectl.kubeconfig)}
    environment["PATH"] = f"{PROGRAMS}:{environment['PATH']}"
    command = [str(find("kubectl")), "evenkeel", "status", "-w", "-o", "json", f"--namespace={world.namespace}"]
    watching = await asyncio.create_subprocess_exec(*command, env=environment, stdout=subprocess.PIPE)
    assert watching.stdout is not None

    async def replicas() -> int:
        assert watching.stdout is not None
        async with asyncio.timeout(60):
            [found] = json.loads(await watching.stdout.readuntil(b"\n"))["tables"]
        return int(found["status"]["replicas"])

    assert await replicas() == 3
    await world.run("scale", "table/orders", "--replicas=4")
    while await replicas() != 4:
        pass
    watching.send_signal(signal.SIGINT)
    assert await asyncio.wait_for(watching.wait(), 60) == 0


# Queries


def secret(namespace: str) -> Object:
    """The client Secret that the operator creates."""
    endpoints = ",".join(f"grpc://main-{n}.main.{namespace}.svc:7410" for n in range(2))
    data = {"endpoints": b64encode(endpoints.encode()).decode(), "token": b64encode(b"secret").decode()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "main-client"}, "data": data}


async def pods_on(world: World, node: str) -> None:
    """Running pods of two stores, without a controller."""
    await world.stop("pods")
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
    await world.apply(account, store_cluster(stores=2), secret(world.namespace))
    for number in range(2):
        metadata = {"name": f"main-{number}", "namespace": world.namespace}
        spec = {"nodeName": node, "containers": [{"name": "store", "image": "none"}]}
        made = await world.kube.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        uid = made["metadata"]["uid"]
        await world.kube.set_status(POD, f"main-{number}", world.namespace, uid=uid, status={"phase": "Running"})


@asynccontextmanager
async def two_stores(world: World, tmp_path: Path) -> AsyncIterator[list[Store]]:
    """Two stores that lead one partition each, and advertise pod names."""
    async with AsyncExitStack() as stack:
        made = [Store(tmp_path / f"{n}", name=f"main-{n}", tokens=lambda: [b"secret"]) for n in range(2)]
        for store in made:
            await stack.enter_async_context(store)
        await introduce(world, made)
        yield made


async def introduce(world: World, made: list[Store]) -> None:
    for number, store in enumerate(made):
        await store.table(table_record(ORDERS, partitions=2), partitions=[number])
        for other in range(2):
            address = f"grpc://main-{other}.main.{world.namespace}.svc:7410"
            store.routes.put(KEYS.store(f"main-{other}"), encode(StoreRecord(volume="v", flight=address)))
            store.routes.put(KEYS.leader("orders.1", other), encode(Leader(f"main-{other}", 1)))


async def test_sql_goes_through_the_api_server(world: World, tmp_path: Path) -> None:
    """Stores with pod names that do not resolve here are reached by forwarded ports."""
    node = f"{world.namespace}-node"
    async with two_stores(world, tmp_path) as stores, kubelet(world.kube, node, tmp_path) as found:
        await pods_on(world, node)
        found.ports = {store.name: store.server.port for store in stores}
        beside = {f"grpc://{store.name}.main.{world.namespace}.svc:7410": store.address for store in stores}
        async with AsyncClient([*beside], token="secret", via=beside.__getitem__) as client:
            await client.table("orders").upsert([{"id": number, "customer": f"c{number}"} for number in range(9)])
        said = await plugged(world, "sql", "select customer, id from orders where id < 2 order by id")
        assert [line.split() for line in said.splitlines()] == [["CUSTOMER", "ID"], ["c0", "0"], ["c1", "1"]]
        rows = json.loads(await plugged(world, "sql", "select count(*) as n from orders", "-o", "json"))
        assert rows == [{"n": 9}]
        assert set(found.opened) == {"main-0", "main-1"}
        assert "nope does not exist! There are: orders" in await refused(world, "sql", "select * from nope")
        found.ports.clear()
        assert "nothing listens on port 7410" in await refused(world, "sql", "select * from orders")


async def test_sql_without_stores(world: World) -> None:
    """The error says what is missing."""
    assert "allowed: one that exists in namespace" in await refused(world, "sql", "select 1")
    await world.apply(store_cluster())
    assert "the operator has not created the Secret main-client yet" in await refused(world, "sql", "select 1")
    await world.apply(secret(world.namespace))
    assert "no pod of a store is running" in await refused(world, "sql", "select 1")


# Errors


async def test_missing_objects_are_named(world: World) -> None:
    """The error lists what exists."""
    await world.apply(store_cluster())
    words = f"Table: got 'nope'; allowed: one that exists in namespace {world.namespace} (there are none)"
    assert await refused(world, "partitions", "nope") == words
    assert await refused(world, "plan", "nope") == words
    assert "store: got 'main-9'; allowed: main-0 to main-2" in await refused(world, "drain", "main-9")
    assert "kind: got 'pod'" in await refused(world, "pause", "pod/x")


async def test_missing_permissions(world: World, tmp_path: Path) -> None:
    """The error has the API server's reason, and names the roles."""
    await world.run("create", "serviceaccount", "nobody")
    token = (await world.run("create", "token", "nobody")).strip()
    config = as_user(world.kubectl, tmp_path, {"token": token})
    result = await attempt(world, "status", kubeconfig=config)
    assert "cannot list resource" in str(result.exception)
    assert "reading needs the role `view` in the namespace" in str(result.exception)


def as_user(kubectl: Kubectl, folder: Path, user: dict[str, Any]) -> Path:
    """Write a kubeconfig of another user."""
    assert kubectl.kubeconfig is not None
    config = msgspec.yaml.decode(kubectl.kubeconfig.read_bytes())
    config["users"][0]["user"] = user
    file = folder / "kubeconfig"
    file.write_bytes(msgspec.yaml.encode(config))
    return file


async def test_wrong_kubeconfigs(world: World, tmp_path: Path) -> None:
    """A missing file, an unknown context, and an API server that does not answer."""
    result = await attempt(world, "status", kubeconfig=tmp_path / "none")
    assert str(result.exception) == f"--kubeconfig: {tmp_path / 'none'} is not a file"
    assert "nowhere" in await refused(world, "status", "--context", "nowhere")
    assert world.kubectl.kubeconfig is not None
    config = msgspec.yaml.decode(world.kubectl.kubeconfig.read_bytes())
    config["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    (tmp_path / "closed").write_bytes(msgspec.yaml.encode(config))
    result = await attempt(world, "status", kubeconfig=tmp_path / "closed")
    assert str(result.exception).startswith("the API server does not answer")


@pytest.mark.processes
async def test_evenkeel_is_not_installed(tmp_path: Path) -> None:
    """The error says that the API server has no such resource."""
    with api_server(tmp_path) as plane:
        where = f"--kubeconfig={plane.kubectl.kubeconfig}"
        for arguments in (["status"], ["partitions", "orders"], ["drain", "main-0"]):
            result = await asyncio.to_thread(lambda given: CliRunner().invoke(plugin, given), [*arguments, where])
            assert "install Evenkeel" in str(result.exception)


@pytest.mark.parametrize("verb", ["apply", "delete", "scale", "local"])
def test_verbs_of_kubectl(verb: str) -> None:
    """The plugin does not define verbs of kubectl."""
    assert CliRunner().invoke(plugin, [verb]).exit_code == 2
