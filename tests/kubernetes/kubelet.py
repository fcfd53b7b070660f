"""A fake kubelet that forwards ports of its pods to local ports.

Only `portForward` is there, in the protocol `v4.channel.k8s.io`, over TLS as the API server asks.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

from aiohttp import WSMsgType, web

from evenkeel.kube.kube_client import Kube
from evenkeel.kube.object_kinds import NODE
from evenkeel_operator.identity.authority import Authority


class Kubelet:
    """A node; `ports` maps ports of pods to local ports."""

    def __init__(self) -> None:
        self.ports: dict[str, int] = {}
        self.opened: list[str] = []
        """Pods whose ports were forwarded, one entry for each connection."""

    async def portforward(self, request: web.Request) -> web.WebSocketResponse:
        pod, port = request.match_info["pod"], int(request.query["port"])
        socket = web.WebSocketResponse(protocols=["v4.channel.k8s.io"], max_msg_size=0)
        await socket.prepare(request)
        self.opened.append(pod)
        for channel in (0, 1):
            await socket.send_bytes(bytes((channel,)) + port.to_bytes(2, "little"))
        if pod not in self.ports:
            await socket.send_bytes(b"\x01nothing listens on port " + str(port).encode())
            return socket
        reader, writer = await asyncio.open_connection("127.0.0.1", self.ports[pod])
        answering = asyncio.create_task(_answer(reader, socket))
        async for message in socket:
            if message.type is WSMsgType.BINARY:
                writer.write(message.data[1:])
                await writer.drain()
        answering.cancel()
        await asyncio.gather(answering, return_exceptions=True)
        writer.close()
        return socket


async def _answer(reader: asyncio.StreamReader, socket: web.WebSocketResponse) -> None:
    while data := await reader.read(65536):
        await socket.send_bytes(b"\x00" + data)
    await socket.close()


@contextlib.asynccontextmanager
async def kubelet(kube: Kube, node: str, folder: Path) -> AsyncIterator[Kubelet]:
    """A node that is registered with the API server."""
    found = Kubelet()
    app = web.Application()
    app.router.add_get("/portForward/{namespace}/{pod}", found.portforward)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=_certified(folder))
    await site.start()
    port = runner.addresses[0][1]
    made = await kube.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}})
    status = {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
    }
    await kube.set_status(NODE, node, "", uid=made["metadata"]["uid"], status=status)
    try:
        yield found
    finally:
        await kube.delete(NODE, node)
        await runner.cleanup()


def _certified(folder: Path) -> ssl.SSLContext:
    issued = Authority(b"k" * 32, "kubelet").issue("kubelet", ["127.0.0.1"], now=datetime.now(UTC))
    (folder / "kubelet.crt").write_text(issued.certificate)
    (folder / "kubelet.key").write_text(issued.key)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "kubelet.crt", folder / "kubelet.key")
    return context
