"""Calls that find the right store, and are made again until their deadline.

What a store refuses for good is raised at once. What another store, or a later moment, may answer is tried again: a
leader that moved, a store that is busy, full or gone, an outcome that nobody knows (writes carry tokens for that).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Final, TypeVar

import pyarrow as pa
from pyarrow import flight

from evenkeel.client.connections import Connections, store_error
from evenkeel.client.routes import Route, RouteCache
from evenkeel.errors import (
    BusyError,
    DiskFullError,
    NotLeaderError,
    OutcomeUnknownError,
    StoreError,
    UnavailableError,
)

__all__ = ["PASSING", "Attempts", "Call"]

_T = TypeVar("_T")
Call = Callable[[flight.FlightClient, flight.FlightCallOptions], _T]
PASSING: Final = (BusyError, DiskFullError, NotLeaderError, OutcomeUnknownError, UnavailableError)
"""What another store, or a later moment, may answer otherwise."""
_FIRST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 1.0
_LONGEST_CALL: Final = 30.0


class Attempts:
    """How calls are made, for all tables of a client."""

    def __init__(self, routes: RouteCache, connections: Connections, *, deadline: float) -> None:
        self.routes = routes
        self.deadline = deadline
        self.endless = connections.options(None)
        """For streams."""
        self._connections = connections

    def at_leader(self, table: str, partition: int, call: Call[_T]) -> _T:
        """Have the leader of a partition do something."""
        return self._until(table, partition, call, anywhere=False)

    def anywhere(self, table: str, partition: int, call: Call[_T]) -> _T:
        """Have any replica of a partition do something."""
        return self._until(table, partition, call, anywhere=True)

    def at(self, address: str, call: Call[_T]) -> _T:
        """Have one store do something, once."""
        return self._call(address, call, self.deadline)

    def _until(self, table: str, partition: int, call: Call[_T], *, anywhere: bool) -> _T:
        until, pause, anew = time.monotonic() + self.deadline, _FIRST_PAUSE, False
        turn = 0
        while True:
            left = until - time.monotonic()
            try:
                route = self.routes.table(table, anew=anew)
                address = self._choose(route, partition, anywhere=anywhere, turn=turn)
                return self._call(address, call, min(left, _LONGEST_CALL))
            except PASSING as error:
                if left <= 0:
                    raise
                turn += 1
                anew = not self._corrected(table, partition, error)
                if anew:
                    time.sleep(min(pause * random.uniform(0.5, 1.0), max(0.0, left)))
                    pause = min(2 * pause, _LONGEST_PAUSE)

    def _choose(self, route: Route, partition: int, *, anywhere: bool, turn: int) -> str:
        if anywhere:
            found = self.routes.anywhere(route, partition)
            if found:
                return found[turn % len(found)]
        elif address := self.routes.address(route, partition):
            return address
        raise UnavailableError(f"nobody is known to lead partition {partition} of table {route.name}")

    def _call(self, address: str, call: Call[_T], seconds: float) -> _T:
        options = self._connections.options(max(0.1, seconds))
        try:
            return call(self._connections.to(address), options)
        except StoreError:
            raise
        except (pa.ArrowException, OSError) as error:
            raise store_error(error) from None

    def _corrected(self, table: str, partition: int, error: StoreError) -> bool:
        """Whether the store itself said whom to ask instead."""
        if not isinstance(error, NotLeaderError) or not error.address:
            return False
        self.routes.correct(self.routes.table(table), partition, error.store, error.address)
        return True
