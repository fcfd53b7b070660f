"""Idle groups are probed in turn, and a suspected one first."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from evenkeel.runtime.clock import VirtualClock
from evenkeel.wire.socket_messages import Opened
from evenkeel_raft.host.state_machine_health import StateMachineHealth


def replica(group: int, reopened: list[int]) -> Any:
    applier = SimpleNamespace(idle=True, reopen=lambda: reopened.append(group))
    return SimpleNamespace(group=group, id=("a", 1), partition=("orders.1", group), applier=applier)


class Machine:
    """Answers immediately, records the probed groups, and reports some as damaged."""

    def __init__(self, damaged: int) -> None:
        self.asked: list[int] = []
        self._damaged = damaged

    def open(self, group: int, replica: int, *, table: str, partition: int) -> asyncio.Future[Opened]:
        self.asked.append(group)
        answer = asyncio.get_running_loop().create_future()
        answer.set_result(Opened(1, "damaged" if group == self._damaged else "ok"))
        return answer


async def test_a_suspected_group_is_probed_next() -> None:
    """A suspected group is probed next, and reopened if it is damaged."""
    reopened: list[int] = []
    replicas = {group: replica(group, reopened) for group in range(1000)}
    machine: Any = Machine(damaged=500)
    health = StateMachineHealth(replicas, machine=machine, clock=VirtualClock(), timeout=10.0, on_change=lambda _: None)
    for _ in range(3):
        health.check()
        await asyncio.sleep(0)
    health.check_next(replicas[500])
    health.check()
    await asyncio.sleep(0)
    assert machine.asked[-1] == 500
    assert reopened == [500]


async def test_a_group_being_restored_is_not_reopened() -> None:
    """A group that is being restored is not reopened."""
    reopened: list[int] = []
    replicas = {500: replica(500, reopened)}
    machine: Any = Machine(damaged=500)
    health = StateMachineHealth(replicas, machine=machine, clock=VirtualClock(), timeout=10.0, on_change=lambda _: None)
    health.check_next(replicas[500])
    health.check()
    replicas[500].applier.idle = False
    await asyncio.sleep(0)
    assert machine.asked == [500]
    assert reopened == []
