"""Fixtures: a sidecar's socket that listens, and stores' sockets that connect to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from evenkeel.runtime.clock import VirtualClock
from evenkeel.wire.sidecar_socket import SidecarSocket
from evenkeel.wire.store_socket import StoreSocket
from tests.wire.support import FakeMachine, Raw, Sidecar


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def sidecar() -> Sidecar:
    return Sidecar()


@pytest.fixture
def machine() -> FakeMachine:
    return FakeMachine()


@pytest.fixture
async def listening(tmp_path: Path, sidecar: Sidecar, clock: VirtualClock) -> AsyncIterator[SidecarSocket]:
    sidecar_socket = SidecarSocket(tmp_path / "sm.sock", volume="vol-1", handler=sidecar, clock=clock)
    await sidecar_socket.start()
    yield sidecar_socket
    await sidecar_socket.close()


@pytest.fixture
async def connect(tmp_path: Path) -> AsyncIterator[Callable[..., tuple[StoreSocket, asyncio.Task[None]]]]:
    """Start stores' sockets; they are stopped after the test."""
    tasks = []

    def start(machine: FakeMachine, **options: Any) -> tuple[StoreSocket, asyncio.Task[None]]:
        store_socket = StoreSocket(tmp_path / "sm.sock", state_machine=machine, **({"volume": "vol-1"} | options))
        tasks.append(asyncio.create_task(store_socket.run()))
        return store_socket, tasks[-1]

    yield start
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture
async def raw(listening: SidecarSocket) -> AsyncIterator[Raw]:
    """A store that sends hand-written messages."""
    peer = await Raw.connect(listening.path)
    yield peer
    await peer.close()
