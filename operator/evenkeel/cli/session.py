"""What a command works with: the resources and the metastore of the cluster that is meant."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

from evenkeel.errors import InvalidInputError
from evenkeel.local.layout import Layout, default_directory
from evenkeel.local.resources import NAMESPACE, LocalResources
from evenkeel.metastore.api import Metastore
from evenkeel.metastore.etcd import EtcdMetastore
from evenkeel.metastore.settings import EtcdSettings
from evenkeel.protocol.keys import Keys
from evenkeel.rebalancers.process import FOLDERS

__all__ = ["Session", "in_session", "layout_of", "watching"]

Result = TypeVar("Result")


class Session:
    """A cluster, connected."""

    def __init__(self, layout: Layout, metastore: Metastore) -> None:
        self.layout = layout
        self.metastore = metastore
        self.resources = LocalResources(metastore)

    def keys(self, store_cluster: str) -> Keys:
        """The keys of one StoreCluster."""
        return Keys(namespace=NAMESPACE, store_cluster=store_cluster)


def layout_of(directory: Path | None) -> Layout:
    """The files of the cluster that is meant."""
    return Layout(directory if directory is not None else default_directory())


@asynccontextmanager
async def _session(directory: Path | None) -> AsyncIterator[Session]:
    layout = layout_of(directory)
    running = layout.running()
    if running is None:
        state = "is about to start or stop" if layout.is_held() else "does not run"
        raise InvalidInputError(f"the local cluster in {layout.root} {state}: start it with `evenkeel local up`")
    os.environ[FOLDERS] = str(layout.rebalancers)
    async with EtcdMetastore(EtcdSettings(endpoints=(running.etcd,))) as metastore:
        yield Session(layout, metastore)


def in_session(directory: Path | None, work: Callable[[Session], Awaitable[Result]]) -> Result:
    """Connect, do something, and disconnect."""

    async def run() -> Result:
        async with _session(directory) as session:
            return await work(session)

    return asyncio.run(run())


def watching(directory: Path | None, work: Callable[[Session], Awaitable[None]]) -> None:
    """The same for something that may go on until Ctrl-C, which is then its good end."""
    with contextlib.suppress(KeyboardInterrupt):
        in_session(directory, work)
