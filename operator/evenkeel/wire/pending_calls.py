"""Which answer belongs to which request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

from evenkeel.errors import FrameError
from evenkeel.wire.framing import Reason

__all__ = ["Calls"]

Body = TypeVar("Body")


class _Call(NamedTuple):
    group: int
    replica: int
    accepts: tuple[type[Any], ...]
    settle: Callable[[Any], None]


class Calls(Generic[Body]):
    """The requests of one connection that wait for their answers."""

    def __init__(self) -> None:
        self._last = 0
        self._waiting: dict[int, _Call] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def begin(
        self, group: int, replica: int, *, accepts: tuple[type[Any], ...], settle: Callable[[Body | None], None]
    ) -> int:
        """Return the number for a request; `settle` is told the answer, or None if there will be none."""
        self._last += 1
        self._waiting[self._last] = _Call(group, replica, accepts, settle)
        return self._last

    def answered(self, number: int, group: int, replica: int, body: Body) -> None:
        """Hand an answer to whoever waits for it; `FrameError` where nobody asked for such a thing."""
        call = self._waiting.pop(number, None)
        if call is None:
            raise FrameError(Reason.UNEXPECTED, f"{type(body).__name__} answers {number}, which is not waiting")
        if not isinstance(body, call.accepts) or (group, replica) != (call.group, call.replica):
            call.settle(None)
            raise FrameError(Reason.UNEXPECTED, f"{type(body).__name__} does not answer what {number} asked")
        call.settle(body)

    def abandon(self) -> None:
        """Tell everybody who waits that there will be no answer."""
        waiting, self._waiting = self._waiting, {}
        for call in waiting.values():
            call.settle(None)
