"""The clusters under test, each with a client: three stores, and three etcd members for comparison.

Our side is a client (this process), the server of a state machine, its sidecar, and raft over loopback between three
stores that sync their disks. The etcd client is aetcd, over gRPC, connected to the leading member.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aetcd

from evenkeel.metastore.etcd_binary import find_etcd
from evenkeel.metastore.etcd_server import EtcdCluster
from evenkeel.protocol.keys import group_number
from evenkeel.wire.socket_messages import Busy
from evenkeel_reference.reference_client import ReferenceClient
from evenkeel_reference.reference_entries import Entry, Upsert
from evenkeel_reference.reference_server import StatusIs, Written
from tests.process.process_cluster import LOOPBACK, TABLE, ProcessCluster, StoreProcesses

__all__ = ["Ours", "cluster", "etcd_leader", "etcd_name", "ours"]

_POLL_SECONDS = 0.01


@contextlib.asynccontextmanager
async def cluster(*, replicas: int = 3, **options: Any) -> AsyncIterator[ProcessCluster]:
    """Start stores with one table that is ready."""
    with tempfile.TemporaryDirectory(prefix="evenkeel-bench-") as directory:
        async with ProcessCluster(Path(directory), **options) as made:
            await made.reconcile(replicas)
            await made.until_settled(within=600)
            yield made


class Ours:
    """Connections to the servers of all stores that hold the first partition."""

    def __init__(self, clients: dict[str, ReferenceClient]) -> None:
        self.clients = clients
        self.group = group_number(TABLE, 0)
        self.leader = next(iter(clients))

    async def find_leader(self) -> str:
        """Poll until a store reports that it leads."""
        while True:
            for store, client in self.clients.items():
                status = await client.status(self.group)
                if isinstance(status, StatusIs) and status.leader:
                    self.leader = store
                    return store
            await asyncio.sleep(_POLL_SECONDS)

    async def write(self, entry: Entry) -> Written:
        """Write to the leader; retry while it is busy."""
        while True:
            outcome = await self.clients[self.leader].write(self.group, entry)
            if isinstance(outcome, Written):
                return outcome
            assert isinstance(outcome, Busy), outcome
            await asyncio.sleep(_POLL_SECONDS)

    async def put(self, key: bytes, value: bytes) -> None:
        """Set a key."""
        await self.write(Upsert("", 0, key, value))

    async def read(self, key: bytes) -> None:
        """Read a key; the leader has then applied all earlier writes."""
        await self.clients[self.leader].get(self.group, key)

    async def until_applied(self) -> None:
        """Wait until all stores have applied what the leader has."""
        await self.read(b"")
        goal = await self._applied(self.leader)
        for store in self.clients:
            while await self._applied(store) < goal:  # noqa: ASYNC110 - of another process
                await asyncio.sleep(_POLL_SECONDS)

    async def _applied(self, store: str) -> int:
        status = await self.clients[store].status(self.group)
        assert isinstance(status, StatusIs), status
        return status.applied


@contextlib.asynccontextmanager
async def ours(running: ProcessCluster) -> AsyncIterator[Ours]:
    """Connect to all stores of a cluster."""
    clients = {name: await _connect(store) for name, store in sorted(running.stores.items())}
    try:
        side = Ours(clients)
        await side.find_leader()
        yield side
    finally:
        await asyncio.gather(*(client.close() for client in clients.values()))


async def _connect(store: StoreProcesses) -> ReferenceClient:
    """Connect as soon as the server accepts connections."""
    while True:
        with contextlib.suppress(OSError):
            return await ReferenceClient.connect(LOOPBACK, store.front)
        await asyncio.sleep(_POLL_SECONDS)


def etcd_name() -> str:
    """Return the name and version of the etcd that is compared."""
    return "etcd " + ".".join(map(str, find_etcd().version))


@contextlib.asynccontextmanager
async def etcd_leader() -> AsyncIterator[aetcd.Client]:
    """Start three etcd members with default settings, and yield a client of the leader."""
    with tempfile.TemporaryDirectory(prefix="evenkeel-bench-") as directory:
        async with EtcdCluster(Path(directory)) as members:
            leader = urlsplit(await _leading(members.endpoints[0]))
            async with aetcd.Client(host=leader.hostname, port=leader.port) as client:
                yield client


async def _leading(endpoint: str) -> str:
    """Return the client URL of the leading member."""
    asked = urlsplit(endpoint)
    async with aetcd.Client(host=asked.hostname, port=asked.port) as client:
        while (status := await client.status()).leader is None:  # noqa: ASYNC110 - of another process
            await asyncio.sleep(_POLL_SECONDS)
        url: str = status.leader.client_urls[0]
        return url
