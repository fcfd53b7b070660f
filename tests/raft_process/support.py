"""A sidecar in the test's process: a host with its state machine, and an agent on an in-memory metastore."""

from __future__ import annotations

import asyncio
from pathlib import Path

from evenkeel.metastore.memory_metastore import MemoryMetastore
from evenkeel.metastore.metastore_api import Put, Txn
from evenkeel.protocol.records import StoreRecord, encode
from evenkeel_raft.agent.agent import Agent
from evenkeel_raft.agent.agent_context import StoreIdentity
from evenkeel_raft.host.host import Host
from tests.protocol.support import KEYS
from tests.raft_host.support import LOOPBACK, Cluster, Member


class Sidecar:
    """One store and the peers it knows."""

    def __init__(self, directory: Path, *others: str) -> None:
        self.cluster = Cluster(directory, "a", *others)
        self.metastore = MemoryMetastore(clock=self.cluster.clock)

    async def start(self) -> None:
        await self.cluster.start()
        for member in self.cluster.members.values():
            if member is not self.store:
                record = StoreRecord(volume=member.host.identity.volume, address=f"{LOOPBACK}:{member.port}")
                await self.metastore.txn(Txn(success=(Put(KEYS.store(member.name), encode(record)),)))
        record = StoreRecord(volume=self.host.identity.volume, address="127.0.0.1:1")
        self.agent = Agent(
            self.metastore, keys=KEYS, groups=self.host, me=StoreIdentity("a", record), clock=self.cluster.clock
        )
        self._running = asyncio.create_task(self.agent.run())

    async def close(self) -> None:
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)
        await self.metastore.close()
        await self.cluster.close()

    @property
    def store(self) -> Member:
        return self.cluster["a"]

    @property
    def host(self) -> Host:
        return self.store.host
