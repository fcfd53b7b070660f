"""What a command works with: the resources and the metastore of the cluster that is meant."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

from evenkeel.errors import InvalidInputError
from evenkeel.local.layout import Layout
from evenkeel.local.resources import LocalResources
from evenkeel.metastore.etcd import EtcdMetastore
from evenkeel.metastore.settings import EtcdSettings
from evenkeel.protocol.keys import Keys

__all__ = ["Session", "in_session"]

Result = TypeVar("Result")


class Session:
    """A cluster, connected."""

    def __init__(self, layout: Layout, metastore: EtcdMetastore) -> None:
        self.layout = layout
        self.metastore = metastore
        self.resources = LocalResources(metastore)

    def keys(self, store_cluster: str) -> Keys:
        """The keys of one StoreCluster."""
        return Keys(namespace="default", store_cluster=store_cluster)


@asynccontextmanager
async def _session(directory: Path) -> AsyncIterator[Session]:
    layout = Layout(directory)
    running = layout.running()
    if running is None:
        raise InvalidInputError(f"no local cluster runs in {layout.root}: start one with `evenkeel local up`")
    async with EtcdMetastore(EtcdSettings(endpoints=(running.etcd,))) as metastore:
        yield Session(layout, metastore)


def in_session(directory: Path, work: Callable[[Session], Awaitable[Result]]) -> Result:
    """Connect, do something, and disconnect."""

    async def run() -> Result:
        async with _session(directory) as session:
            return await work(session)

    return asyncio.run(run())
