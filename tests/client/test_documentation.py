"""The examples of docs/client.md run."""

from __future__ import annotations

import asyncio

import pytest

from tests.repository.tree import ROOT, shown
from tests.store.serving import Store

PAGE = ROOT / "docs" / "client.md"
BLOCKS = shown(PAGE, "python")


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
async def test_examples_run(block: str, stores: list[Store]) -> None:
    """Each block of the page runs by itself against two stores."""
    endpoints = [store.address for store in stores]
    await asyncio.to_thread(exec, compile(block, str(PAGE), "exec"), {"ENDPOINTS": endpoints})
