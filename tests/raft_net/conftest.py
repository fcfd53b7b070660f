"""Fixtures that create stores and proxies and close them after the test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.raft_net.support import Proxy, Store


@pytest.fixture
async def new_store(tmp_path: Path) -> AsyncIterator[Callable[..., Awaitable[Store]]]:
    stores: list[Store] = []

    async def make(name: str, *, port: int = 0, **options: Any) -> Store:
        stores.append(Store(name, tmp_path, **options))
        return await stores[-1].start(port)

    yield make
    for store in stores:
        await store.peers.close()


@pytest.fixture
async def new_proxy() -> AsyncIterator[Callable[[int], Awaitable[Proxy]]]:
    proxies: list[Proxy] = []

    async def make(target: int) -> Proxy:
        proxies.append(Proxy(target))
        return await proxies[-1].start()

    yield make
    for proxy in proxies:
        await proxy.close()
