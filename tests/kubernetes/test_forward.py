"""Forwarded ports, with a real API server and a fake kubelet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from evenkeel.errors import ApiNotFoundError
from evenkeel.kube.kube_client import Kube
from evenkeel.kube.port_forward import Forwarder
from tests.kubernetes.kubelet import Kubelet, kubelet
from tests.kubernetes.world import World


@pytest.fixture
async def node(world: World, tmp_path: Path) -> AsyncIterator[Kubelet]:
    """A node with one pod, whose port echoes in capitals."""
    await world.stop("pods")
    await world.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}})
    name = f"{world.namespace}-node"
    spec = {"nodeName": name, "containers": [{"name": "store", "image": "none"}]}
    server = await asyncio.start_server(shout, "127.0.0.1", 0)
    async with server, kubelet(world.kube, name, tmp_path) as found:
        metadata = {"name": "main-0", "namespace": world.namespace}
        await world.kube.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        found.ports["main-0"] = server.sockets[0].getsockname()[1]
        yield found


async def shout(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data.upper())
    writer.close()


async def connected(forwarder: Forwarder) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", await forwarder.listen("main-0"))


def forwarder_of(kube: Kube, world: World) -> Forwarder:
    return Forwarder(kube, namespace=world.namespace, port=7410)


async def test_bytes_go_both_ways(world: World, node: Kubelet) -> None:
    """More than fits into one message, over one port for all connections to a pod."""
    forwarder = forwarder_of(world.kube, world)
    reader, writer = await connected(forwarder)
    said = b"much" * 100_000
    writer.write(said)
    async with asyncio.timeout(30):
        assert await reader.readexactly(len(said)) == said.upper()
    assert await forwarder.listen("main-0") == writer.get_extra_info("peername")[1]
    writer.close()
    await forwarder.close()


async def test_closing_ends_connections(world: World, node: Kubelet) -> None:
    """Open connections are closed, and nothing stays open."""
    forwarder = forwarder_of(world.kube, world)
    reader, writer = await connected(forwarder)
    writer.write(b"hello")
    async with asyncio.timeout(30):
        assert await reader.readexactly(5) == b"HELLO"
        await forwarder.close()
        assert await reader.read() == b""
    writer.close()


async def test_a_missing_pod(world: World) -> None:
    """The error comes before any connection."""
    with pytest.raises(ApiNotFoundError, match="main-7"):
        await forwarder_of(world.kube, world).check("main-7")


async def test_errors_of_the_pod_are_kept(world: World, node: Kubelet) -> None:
    """The connection ends, and the kubelet's error is available."""
    node.ports.clear()
    forwarder = forwarder_of(world.kube, world)
    reader, writer = await connected(forwarder)
    async with asyncio.timeout(30):
        assert await reader.read() == b""
    assert forwarder.problems == {"main-0": "nothing listens on port 7410"}
    writer.close()
    await forwarder.close()
