"""Local ports that the API server forwards to a port of pods, for clients outside of Kubernetes.

Each connection is a WebSocket to the `portforward` subresource of the pod in the protocol `v4.channel.k8s.io`. The
first byte of a message is its channel, 0 for data and 1 for errors. The first message of each channel repeats the port
and is skipped.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Final

import aiohttp

from evenkeel.errors import KubernetesError
from evenkeel.kube.kube_client import Kube, Socket
from evenkeel.kube.object_kinds import POD

__all__ = ["Forwarder"]

log = logging.getLogger(__name__)

_PROTOCOL: Final = "v4.channel.k8s.io"
_DATA: Final = 0
_CHUNK: Final = 64 * 1024


class Forwarder:
    """Forwards local ports to the same port of several pods; each local port is opened on first use."""

    def __init__(self, kube: Kube, *, namespace: str, port: int) -> None:
        self._kube = kube
        self._namespace = namespace
        self._port = port
        self._servers: dict[str, asyncio.Server] = {}
        self._serving: set[asyncio.Task[None]] = set()
        self._lock = asyncio.Lock()
        self.problems: dict[str, str] = {}
        """The last problem of each pod."""

    async def check(self, pod: str) -> None:
        """Raise KubernetesError if ports cannot be forwarded to the pod."""
        async with self._open(pod):
            pass

    async def listen(self, pod: str) -> int:
        """Return the local port of a pod."""
        async with self._lock:
            if pod not in self._servers:
                self._servers[pod] = await asyncio.start_server(
                    lambda reader, writer: self._accept(pod, reader, writer), "127.0.0.1", 0
                )
        port: int = self._servers[pod].sockets[0].getsockname()[1]
        return port

    async def close(self) -> None:
        """Close the local ports and all connections."""
        servers, self._servers = self._servers, {}
        for server in servers.values():
            server.close()
        serving = list(self._serving)
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)

    def _open(self, pod: str) -> contextlib.AbstractAsyncContextManager[Socket]:
        path = POD.path(self._namespace, pod, "portforward")
        return self._kube.websocket(POD, path, query={"ports": str(self._port)}, protocol=_PROTOCOL)

    def _accept(self, pod: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(pod, reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, pod: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with self._open(pod) as socket:
                sending = asyncio.create_task(_send(reader, socket))
                try:
                    await self._receive(pod, socket, writer)
                finally:
                    sending.cancel()
                    await asyncio.gather(sending, return_exceptions=True)
        except (KubernetesError, aiohttp.ClientError, OSError) as error:
            self.problems[pod] = str(error)
            log.debug("connection to pod %s closed: %s", pod, error)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _receive(self, pod: str, socket: Socket, writer: asyncio.StreamWriter) -> None:
        opened: set[int] = set()
        async for message in socket:
            if message.type is not aiohttp.WSMsgType.BINARY or not message.data:
                continue
            channel, data = message.data[0], message.data[1:]
            if channel not in opened:
                opened.add(channel)
            elif channel == _DATA:
                writer.write(data)
                await writer.drain()
            elif data:
                self.problems[pod] = data.decode(errors="replace")
                return


async def _send(reader: asyncio.StreamReader, socket: Socket) -> None:
    """Send data to the pod until the client disconnects, then close the WebSocket."""
    while data := await reader.read(_CHUNK):
        await socket.send_bytes(bytes((_DATA,)) + data)
    await socket.close()
