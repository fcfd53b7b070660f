"""Restores the process-wide state that a sidecar changes."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.raft_process.support import Sidecar


@pytest.fixture(autouse=True)
def _logs() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level


@pytest.fixture
async def sidecar(tmp_path: Path) -> AsyncIterator[Sidecar]:
    sidecar = Sidecar(tmp_path, "b")
    await sidecar.start()
    yield sidecar
    await sidecar.close()
