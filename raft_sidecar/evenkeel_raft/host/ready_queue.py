"""Which replicas have something to do: each is asked once per turn of the loop, whatever happened to it meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evenkeel_raft.host.raft_replica import Replica

__all__ = ["ReadyQueue"]


class ReadyQueue:
    """`on_turn` is called after each turn's work, in this order: what goes to one place leaves together.

    `on_due` tells who wants to be looked at earlier than it did.
    """

    def __init__(self, *, on_turn: Sequence[Callable[[], None]], on_due: Callable[[Replica], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_turn = on_turn
        self._on_due = on_due
        self._stirred: list[Replica] = []
        self._scheduled = False

    def stir(self, replica: Replica) -> None:
        """Something happened to a replica."""
        if replica.stirred:
            return
        replica.stirred = True
        self._stirred.append(replica)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        stirred, self._stirred = self._stirred, []
        self._scheduled = False
        for replica in stirred:
            replica.stirred = False
            replica.work()
            if replica.node.due < replica.due:
                self._on_due(replica)
        for send in self._on_turn:
            send()
