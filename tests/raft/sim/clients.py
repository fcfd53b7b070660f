"""Clients of the group, and the history of their operations.

Time in a history is the event's number, so no two events are simultaneous. A write without a response stays open; a
read without one is left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evenkeel_raft.core.errors import Refusal, RefusedError
from evenkeel_raft.core.raft_types import Entry, ReadState
from tests.raft.check.linearizability import OPEN, Operation
from tests.raft.sim.store import encode

if TYPE_CHECKING:
    from evenkeel_raft.core.rawnode import RawNode
    from tests.raft.sim.host import Host
    from tests.raft.sim.world import World

KEYS = ("a", "b", "c")


class _Call:
    """An operation in progress at a host."""

    def __init__(self, client: int, number: int, operation: Operation) -> None:
        self.client, self.number, self.operation = client, number, operation
        self.term = 0


class Clients:
    """Clients with one call at a time each."""

    def __init__(self, world: World, count: int) -> None:
        self._world = world
        self.history: list[Operation] = []
        self.answered = 0
        self._values = 0
        self._stopped = False
        self._numbers = [0] * count  # of each client's current call
        self._busy = [False] * count
        self._writes: dict[int, dict[int, _Call]] = {}
        self._reads: dict[int, dict[int, _Call]] = {}
        self._due: dict[int, list[tuple[int, _Call]]] = {}
        for client in range(count):
            world.clock.later(world.rng.randint(0, 200), self._begin, client)

    def stop(self) -> None:
        """Start no new calls."""
        self._stopped = True

    def _begin(self, client: int) -> None:
        if self._stopped:
            return
        world, rng = self._world, self._world.rng
        number = self._numbers[client] = self._numbers[client] + 1
        self._busy[client] = False
        world.clock.later(rng.randint(5, 60), self._again, client, number)
        host = world.some_host()
        if host is None:
            return
        kind = rng.choice(("write", "read", "read", "cas"))
        operation = Operation(kind, rng.choice(KEYS), world.clock.events)
        call = _Call(client, number, operation)
        self._busy[client] = True
        self.history.append(operation)
        host.later(0, host.call, lambda node: self._arrive(host, node, call))
        world.clock.later(rng.randint(300, 900), self._give_up, call)

    def _arrive(self, host: Host, node: RawNode, call: _Call) -> None:
        """Make the call once the process runs; a refused call is left out of the history."""
        try:
            self._call(host, node, call)
        except RefusedError:
            self.history.remove(call.operation)
            self._finish(call)

    def _call(self, host: Host, node: RawNode, call: _Call) -> None:
        operation = call.operation
        self._values += 1
        if operation.kind == "read":
            if self._world.mix.one_read and self._reads.get(host.replica):
                raise RefusedError(Refusal.BUSY)
            node.read_index(self._values)
            self._reads.setdefault(host.replica, {})[self._values] = call
            return
        operation.value = self._values
        data = {"key": operation.key, "value": operation.value}
        if operation.kind == "cas":
            operation.old = data["old"] = self._world.last_value(operation.key)
        index = node.propose(encode(data))
        call.term = node.term
        self._writes.setdefault(host.replica, {})[index] = call

    def _again(self, client: int, number: int) -> None:
        """Start the next call once the last one was answered or abandoned."""
        if self._numbers[client] != number:
            return
        if self._busy[client]:
            self._world.clock.later(self._world.rng.randint(5, 60), self._again, client, number)
        else:
            self._begin(client)

    def _give_up(self, call: _Call) -> None:
        if self._numbers[call.client] == call.number and self._busy[call.client]:
            self._numbers[call.client] += 1
            self._world.clock.later(1, self._begin, call.client)

    def _finish(self, call: _Call) -> None:
        if self._numbers[call.client] == call.number:
            self._busy[call.client] = False

    def _answer(self, call: _Call) -> None:
        if self._numbers[call.client] == call.number:
            call.operation.returned = self._world.clock.events
            self.answered += 1
            self._finish(call)

    # Called by the host

    def committed(self, host: Host, entries: list[Entry]) -> None:
        """Answer committed writes; a write replaced by another entry will never be answered."""
        calls = self._writes.get(host.replica)
        if not calls:
            return
        for entry in entries:
            call = calls.get(entry.index)
            if call is not None and entry.term != call.term:
                del calls[entry.index]
                self.history.remove(call.operation)
                self._finish(call)
            elif call is not None and call.operation.kind == "write":
                del calls[entry.index]
                self._answer(call)

    def applied(self, host: Host, entry: Entry, result: bool) -> None:
        """Answer a compare-and-set with its result; a failed one changed nothing and is left out."""
        call = self._writes.get(host.replica, {}).get(entry.index)
        if call is not None and call.term == entry.term:
            del self._writes[host.replica][entry.index]
            if result:
                self._answer(call)
            else:
                self.history.remove(call.operation)
                self._finish(call)

    def read_answered(self, host: Host, read: ReadState) -> None:
        call = self._reads.get(host.replica, {}).pop(read.context, None)
        if call is None:
            return
        if read.index == 0:
            self.history.remove(call.operation)
            self._finish(call)
            return
        self._due.setdefault(host.replica, []).append((read.index, call))
        self.caught_up(host)

    def caught_up(self, host: Host) -> None:
        """Answer the reads whose index is applied."""
        due = self._due.get(host.replica)
        if not due:
            return
        self._due[host.replica] = [item for item in due if item[0] > host.store.applied]
        for index, call in due:
            if index <= host.store.applied:
                call.operation.value = host.store.state.values.get(call.operation.key, 0)
                self._answer(call)

    def waiting_reads(self) -> dict[int, int]:
        """Return the number of outstanding reads at each running process."""
        return {replica: len(calls) for replica, calls in self._reads.items() if calls}

    def host_died(self, host: Host) -> None:
        """Drop the calls of a dead process; they will not be answered."""
        for calls in (self._writes, self._reads):
            calls.pop(host.replica, None)
        self._due.pop(host.replica, None)


def observed(history: list[Operation]) -> list[Operation]:
    """Drop open writes that no operation observed: an order with them exists if and only if one without them does.

    Failed compare-and-sets, which could observe them too, are not in the history.
    """
    seen = {op.value for op in history if op.kind == "read" and op.returned != OPEN}
    seen |= {op.old for op in history if op.kind == "cas"}
    return [op for op in history if op.returned != OPEN or (op.kind != "read" and op.value in seen)]
