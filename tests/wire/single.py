"""A sidecar without peers: it logs in memory, commits at once, and applies to the connected store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from evenkeel.wire import socket_messages as m
from evenkeel.wire.sidecar_socket import SidecarSocket

GROUP, REPLICA = 7, 3


class Single:
    """One group of one replica."""

    def __init__(self, path: Path, *, volume: str = "vol-1") -> None:
        self.socket = SidecarSocket(path, volume=volume, handler=self)
        self.log: list[m.LoggedEntry] = []
        self.applied = 0
        self.opened: asyncio.Future[m.Opened] = asyncio.get_running_loop().create_future()
        self.leading = True
        self.drained = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def last(self) -> int:
        return self.log[-1].index if self.log else 0

    def connected(self, hello: m.Hello) -> None:
        task = asyncio.get_running_loop().create_task(self._open())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def disconnected(self) -> None:
        self.opened = asyncio.get_running_loop().create_future()

    def propose(self, group: int, replica: int, data: bytes, answer: Callable[[m.ProposeOutcome], None]) -> None:
        if (group, replica) != (GROUP, REPLICA) or not self.leading:
            answer(m.NotLeader("store-2"))
            return
        entry = m.LoggedEntry(self.last + 1, data)
        self.log.append(entry)
        answer(m.Committed(entry.index, 1))
        self._apply(entry.index, [entry])

    def read_index(self, group: int, replica: int, answer: Callable[[m.ReadOutcome], None]) -> None:
        answer(m.ReadAt(self.last) if self.leading else m.Unavailable())

    def doubt(self, group: int, replica: int, doubt: m.Doubt) -> None:
        pass

    def size(self, group: int, replica: int, size: int) -> None:
        pass

    def drain(self, answer: Callable[[m.Drained], None]) -> None:
        self.leading = False
        self.drained.set()
        answer(m.Drained())

    async def _open(self) -> None:
        opened = await self.socket.open(GROUP, REPLICA)
        self.applied = opened.applied
        self.socket.role(GROUP, REPLICA, leader=self.leading, term=1)
        missing = self.log[opened.applied :]
        if missing:
            self._apply(missing[0].index, missing)
        self.opened.set_result(opened)

    def _apply(self, first: int, entries: list[m.LoggedEntry]) -> None:
        future = self.socket.apply(GROUP, REPLICA, first=first, last=entries[-1].index, entries=entries)
        future.add_done_callback(self._record_applied)

    def _record_applied(self, done: asyncio.Future[int]) -> None:
        if done.exception() is None:
            self.applied = max(self.applied, done.result())
