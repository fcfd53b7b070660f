"""Clusters of processes that are stopped after the test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.process.process_cluster import ProcessCluster


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all tests here for `make test-process`."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker("processes")


@pytest.fixture
async def new_cluster(new_directory: Callable[[], Path]) -> AsyncIterator[Callable[..., Any]]:
    async with AsyncExitStack() as stack:

        async def make(**options: Any) -> ProcessCluster:
            return await stack.enter_async_context(ProcessCluster(new_directory(), **options))

        yield make
