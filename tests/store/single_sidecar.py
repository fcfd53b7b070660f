"""A sidecar without peers, for any number of groups: it logs in memory, commits at once and applies to its store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from evenkeel.protocol.keys import group_number
from evenkeel.wire import socket_messages as m
from evenkeel.wire.sidecar_socket import SidecarSocket

REPLICA = 3


class SingleGroup:
    """One group of one replica."""

    def __init__(self, end: SidecarSocket, table: str, partition: int) -> None:
        self.number = group_number(table, partition)
        self.log: list[m.LoggedEntry] = []
        self.leading = True
        self.hint = ""
        self.term = 1
        self._end = end
        self._place = (table, partition)
        self._sent = 0

    @property
    def last(self) -> int:
        return len(self.log)

    async def open(self) -> m.Opened:
        table, partition = self._place
        opened = await self._end.open(self.number, REPLICA, table=table, partition=partition)
        self._sent = opened.applied
        self.publish_role()
        self.send()
        return opened

    def publish_role(self) -> None:
        self._end.role(self.number, REPLICA, leader=self.leading, term=self.term, hint=self.hint)

    def add(self, data: bytes) -> int:
        self.log.append(m.LoggedEntry(self.last + 1, data))
        return self.last

    def send(self) -> asyncio.Future[int] | None:
        missing = self.log[self._sent :]
        if not missing:
            return None
        first, self._sent = self._sent + 1, self.last
        return self._end.apply(self.number, REPLICA, first=first, last=self.last, entries=missing)

    async def destroy(self) -> None:
        await self._end.destroy(self.number, REPLICA)


class Sidecar:
    """All groups of one store."""

    def __init__(self, path: Path, *, volume: str = "vol-1") -> None:
        self.end = SidecarSocket(path, volume=volume, handler=self)
        self.groups: dict[int, SingleGroup] = {}
        self.ready = asyncio.Event()
        self.drained = asyncio.Event()
        self.outcome: m.ProposeOutcome | None = None
        """The answer to all proposals, which are then not logged."""
        self.lost = 0
        """How many of the next proposals are logged but answered with `Unknown`."""
        self.readable = True
        self.doubts: dict[int, m.Doubt] = {}
        self.sizes: dict[int, int] = {}
        self.read_requests = 0
        self.proposals = 0
        self.applying = True
        self._tasks: set[asyncio.Task[None]] = set()

    def group(self, table: str, partition: int = 0) -> SingleGroup:
        made = SingleGroup(self.end, table, partition)
        return self.groups.setdefault(made.number, made)

    def connected(self, hello: m.Hello) -> None:
        task = asyncio.get_running_loop().create_task(self._open())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def disconnected(self) -> None:
        self.ready.clear()

    async def _open(self) -> None:
        await asyncio.gather(*(group.open() for group in self.groups.values()))
        self.ready.set()

    def propose(self, group: int, replica: int, data: bytes, answer: Callable[[m.ProposeOutcome], None]) -> None:
        self.proposals += 1
        found = self.groups.get(group)
        if self.outcome is not None:
            answer(self.outcome)
        elif found is None or not found.leading:
            answer(m.NotLeader(found.hint if found else ""))
        else:
            index = found.add(data)
            answer(m.Unknown() if self.lost else m.Committed(index, found.term))
            self.lost = max(0, self.lost - 1)
            if self.applying:
                found.send()

    def read_index(self, group: int, replica: int, answer: Callable[[m.ReadOutcome], None]) -> None:
        self.read_requests += 1
        answer(m.ReadAt(self.groups[group].last) if self.readable else m.Unavailable())

    def doubt(self, group: int, replica: int, doubt: m.Doubt) -> None:
        self.doubts[group] = doubt

    def size(self, group: int, replica: int, size: int) -> None:
        self.sizes[group] = size

    def drain(self, answer: Callable[[m.Drained], None]) -> None:
        self.drained.set()
        answer(m.Drained())
