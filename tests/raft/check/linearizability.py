"""A linearizability checker for histories of one register.

It uses Wing and Gong's search with Lowe's cache of visited (operations done, value) pairs. An operation with an unknown
outcome may take effect at any time after its call, or never; it stays open.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

OPEN = 1 << 62  # the return time of an operation that never returned


class Operation(Struct):
    """A call on a register. `kind` is write, read or cas; `ok` is a compare-and-set's result.

    A read that did not return can be left out of a history: it changed nothing and saw nothing.
    """

    kind: str
    key: str
    called: int
    returned: int = OPEN
    value: int = 0  # written, or read
    old: int = 0  # expected by a compare-and-set
    ok: bool = True


def linearizable(history: Sequence[Operation], initial: int = 0) -> bool:
    """Whether some order of the operations explains every result."""
    operations = [op for op in history if op.kind != "read" or op.returned != OPEN]
    events = _Events(operations)
    done, value = 0, initial
    unexplained = sum(op.returned != OPEN for op in operations)
    stack: list[tuple[int, int]] = []  # (operation, value before it)
    seen: set[tuple[int, int]] = set()
    event = events.first()
    while unexplained:
        if events.is_call(event):
            after = _apply(operations[event], value)
            state = (done | 1 << event, after or 0)
            if after is None or state in seen:
                event = events.next(event)
                continue
            seen.add(state)
            stack.append((event, value))
            done, value = state
            unexplained -= operations[event].returned != OPEN
            events.remove(event)
            event = events.first()
        elif stack:
            # A return whose call is not linearized yet: backtrack.
            number, value = stack.pop()
            done &= ~(1 << number)
            unexplained += operations[number].returned != OPEN
            events.put_back(number)
            event = events.next(number)
        else:
            return False
    return True


def _apply(op: Operation, value: int) -> int | None:
    """Return the value after the operation, or None if its result is impossible."""
    if op.kind == "write":
        return op.value
    if op.kind == "read":
        return value if op.value == value else None
    if op.returned == OPEN:
        return op.value if value == op.old else value
    matches = value == op.old
    if matches != op.ok:
        return None
    return op.value if matches else value


class _Events:
    """Calls and returns in order of time, as a linked list that supports removing and restoring an operation.

    Event n is the call of operation n; event count + n its return; `end` closes the list.
    """

    def __init__(self, operations: Sequence[Operation]) -> None:
        count = self.count = len(operations)
        self.end = 2 * count
        # At equal times calls come before returns, so that they overlap.
        order = sorted(
            [(op.called, 0, n) for n, op in enumerate(operations)]
            + [(op.returned, 1, count + n) for n, op in enumerate(operations)]
        )
        sequence = [self.end, *(event for _, _, event in order)]
        self._after = [0] * (self.end + 1)
        self._before = [0] * (self.end + 1)
        for here, there in zip(sequence, [*sequence[1:], self.end], strict=True):
            self._after[here], self._before[there] = there, here

    def first(self) -> int:
        return self._after[self.end]

    def next(self, event: int) -> int:
        return self._after[event]

    def is_call(self, event: int) -> bool:
        return event < self.count

    def remove(self, number: int) -> None:
        for event in (number, self.count + number):
            self._after[self._before[event]] = self._after[event]
            self._before[self._after[event]] = self._before[event]

    def put_back(self, number: int) -> None:
        for event in (self.count + number, number):
            self._after[self._before[event]] = event
            self._before[self._after[event]] = event
