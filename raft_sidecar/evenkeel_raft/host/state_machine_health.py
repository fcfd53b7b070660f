"""Detects a state machine that hangs, even when nothing is sent to it.

A process that hangs keeps its connection. While entries are to be applied, the missing answers show it; an idle store
would lead for ever without serving anybody. So one idle group at a time is opened again, which changes nothing. The
groups take turns, because that also finds a group whose state was lost while it was idle.
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
    """Probes the state machine; `on_change` is called when it stops or resumes answering."""

    def __init__(
        self,
        replicas: Mapping[int, Replica],
        *,
        machine: SidecarSocket,
        clock: Clock,
        timeout: float,
        on_change: Callable[[bool], None],
    ) -> None:
        self._replicas = replicas
        self._machine = machine
        self._clock = clock
        self._timeout = timeout
        self._on_change = on_change
        self._waiting: list[int] = []
        self._probe: asyncio.Future[Opened] | None = None
        self._probed_at = 0.0
        self.silent = False

    def check_next(self, replica: Replica) -> None:
        """Probe this replica next."""
        self._waiting.append(replica.group)

    def check(self) -> None:
        """Send a probe, unless an answer is still due."""
        if self._probe is not None:
            if self._clock.now() - self._probed_at > self._timeout:
                self._set(True)
            return
        replica = self._next_idle()
        if replica is None:
            return
        table, partition = replica.partition
        self._probed_at = self._clock.now()
        self._probe = self._machine.open(replica.group, replica.id[1], table=table, partition=partition)
        self._probe.add_done_callback(lambda done: self._on_answer(replica, done))

    def _next_idle(self) -> Replica | None:
        """Return the next idle replica, in turn."""
        while self._waiting:
            replica = self._replicas.get(self._waiting.pop())
            if replica is not None and replica.applier.idle:
                return replica
        self._waiting = list(self._replicas)
        return None

    def _on_answer(self, replica: Replica, done: asyncio.Future[Opened]) -> None:
        self._probe = None
        self._set(False)
        if done.cancelled() or done.exception() is not None or done.result().state != "damaged":
            return
        if replica.applier.idle:  # otherwise the answer is about a state that is being replaced
            replica.applier.reopen()

    def _set(self, silent: bool) -> None:
        if silent != self.silent:
            self.silent = silent
            self._on_change(silent)
