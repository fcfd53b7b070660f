"""Replicas with work, each processed once per turn of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evenkeel_raft.host.raft_replica import Replica

__all__ = ["ReadyQueue"]


class ReadyQueue:
    """Queue of replicas that have something to do.

    After each turn, `on_turn` is called in order, so that everything for one destination leaves together. `on_due` is
    called for a replica whose next timer is due earlier than planned.
    """

    def __init__(self, *, on_turn: Sequence[Callable[[], None]], on_due: Callable[[Replica], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_turn = on_turn
        self._on_due = on_due
        self._ready: list[Replica] = []
        self._scheduled = False

    def enqueue(self, replica: Replica) -> None:
        """Process a replica at the next turn of the event loop."""
        if replica.queued:
            return
        replica.queued = True
        self._ready.append(replica)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        ready, self._ready = self._ready, []
        self._scheduled = False
        for replica in ready:
            replica.queued = False
            replica.process_ready()
            if replica.node.due < replica.due:
                self._on_due(replica)
        for send in self._on_turn:
            send()
