"""Fixture that creates clusters and closes them after the test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.raft_host.support import Cluster


@pytest.fixture
async def new_cluster(tmp_path: Path) -> AsyncIterator[Callable[..., Awaitable[Cluster]]]:
    clusters: list[Cluster] = []

    async def make(*names: str, **options: Any) -> Cluster:
        clusters.append(Cluster(tmp_path, *names, **options))
        await clusters[-1].start()
        return clusters[-1]

    yield make
    for cluster in clusters:
        await cluster.close()
