"""Matches answers with the requests of one connection that wait for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

from evenkeel.errors import FrameError
from evenkeel.wire.framing import Reason

__all__ = ["PendingCalls"]

Body = TypeVar("Body")


class _Call(NamedTuple):
    group: int
    replica: int
    accepts: tuple[type[Any], ...]
    settle: Callable[[Any], None]


class PendingCalls(Generic[Body]):
    """The requests of one connection that have no answer yet."""

    def __init__(self) -> None:
        self._last = 0
        self._pending: dict[int, _Call] = {}

    def __len__(self) -> int:
        return len(self._pending)

    def begin(
        self, group: int, replica: int, *, accepts: tuple[type[Any], ...], settle: Callable[[Body | None], None]
    ) -> int:
        """Return the number of a new request; `settle` receives the answer, or None if there is none."""
        self._last += 1
        self._pending[self._last] = _Call(group, replica, accepts, settle)
        return self._last

    def answered(self, number: int, group: int, replica: int, body: Body) -> None:
        """Settle the request that an answer belongs to; `FrameError` if it answers no request."""
        call = self._pending.pop(number, None)
        if call is None:
            raise FrameError(Reason.UNEXPECTED, f"{type(body).__name__} answers request {number}, which is not pending")
        if not isinstance(body, call.accepts) or (group, replica) != (call.group, call.replica):
            call.settle(None)
            raise FrameError(Reason.UNEXPECTED, f"{type(body).__name__} is not an answer to request {number}")
        call.settle(body)

    def abandon(self) -> None:
        """Settle all requests with None: no more answers arrive."""
        pending, self._pending = self._pending, {}
        for call in pending.values():
            call.settle(None)
