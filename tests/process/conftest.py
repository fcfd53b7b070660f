"""Clusters of processes that end with the test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.process.cluster import ProcessCluster

# Paths of unix sockets have at most 107 bytes, which pytest's own directories may exceed.


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here is for `make test-process`."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker("processes")


@pytest.fixture
async def new_cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Callable[..., Any]]:
    async with AsyncExitStack() as stack:

        async def make(**options: Any) -> ProcessCluster:
            directory: Path = tmp_path_factory.mktemp("c")
            return await stack.enter_async_context(ProcessCluster(directory, **options))

        yield make
