"""Whether the state machine still answers, though nothing may be wanted of it.

A process that hangs keeps its connection. Where something is to be applied that shows; where nothing is, a store that
nobody can write to or read from would lead for ever. So a group at rest is opened once more from time to time, which
changes nothing; another one each time, for a group that has lost its state while nobody asked for it shows so, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from evenkeel.runtime.clock import Clock
from evenkeel.wire.sidecar_socket import SidecarSocket
from evenkeel.wire.socket_messages import Opened
from evenkeel_raft.host.raft_replica import Replica

__all__ = ["StateMachineHealth"]


class StateMachineHealth:
    """`on_change` is told when the state machine falls silent, and when it speaks again."""

    def __init__(
        self,
        replicas: Mapping[int, Replica],
        *,
        machine: SidecarSocket,
        clock: Clock,
        patience: float,
        on_change: Callable[[bool], None],
    ) -> None:
        self._replicas = replicas
        self._machine = machine
        self._clock = clock
        self._patience = patience
        self._on_change = on_change
        self._waiting: list[int] = []
        self._asked: asyncio.Future[Opened] | None = None
        self._asked_at = 0.0
        self.silent = False

    def suspect(self, replica: Replica) -> None:
        """Ask for this one next."""
        self._waiting.append(replica.group)

    def look(self) -> None:
        """Ask, unless an answer is still due."""
        if self._asked is not None:
            if self._clock.now() - self._asked_at > self._patience:
                self._set(True)
            return
        replica = self._next()
        if replica is None:
            return
        table, partition = replica.partition
        self._asked_at = self._clock.now()
        self._asked = self._machine.open(replica.group, replica.id[1], table=table, partition=partition)
        self._asked.add_done_callback(lambda done: self._answered(replica, done))

    def _next(self) -> Replica | None:
        """A replica of which nothing is wanted; all of them in turn."""
        while self._waiting:
            replica = self._replicas.get(self._waiting.pop())
            if replica is not None and replica.applier.at_rest:
                return replica
        self._waiting = list(self._replicas)
        return None

    def _answered(self, replica: Replica, done: asyncio.Future[Opened]) -> None:
        self._asked = None
        self._set(False)
        if done.cancelled() or done.exception() is not None or done.result().state != "damaged":
            return
        if replica.applier.at_rest:  # a snapshot may be replacing the state by now: the answer is of what was before
            replica.applier.reopen()

    def _set(self, silent: bool) -> None:
        if silent != self.silent:
            self.silent = silent
            self._on_change(silent)
