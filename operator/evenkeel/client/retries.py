"""Calls that find the right store, and are made again until their deadline.

What a store refuses for good is raised at once. What another store, or a later moment, may answer is tried again: a
leader that moved, a store that is busy, full or gone, an outcome that nobody knows (writes carry tokens for that).

A deadline is that of a user's call as a whole: whatever it takes to answer it, partition by partition and store by
store, shares what is left. Where there is much to do it begins anew with each part that is done: a partition that was
read, a turn of batches that was acknowledged.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, wait
from typing import Final, TypeVar

import pyarrow as pa
from pyarrow import flight

from evenkeel.client.route_cache import Route, RouteCache
from evenkeel.client.store_connections import Connections, store_error
from evenkeel.errors import (
    BusyError,
    DiskFullError,
    InvalidInputError,
    NotLeaderError,
    OutcomeUnknownError,
    StoreError,
    TableDroppedError,
    UnavailableError,
    UnknownTableError,
)

__all__ = ["GRACE", "PASSING", "Attempts", "Call", "Trying", "positive_seconds"]

_T = TypeVar("_T")
Call = Callable[[flight.FlightClient, flight.FlightCallOptions], _T]
PASSING: Final = (BusyError, DiskFullError, NotLeaderError, OutcomeUnknownError, UnavailableError)
"""What another store, or a later moment, may answer otherwise."""
GRACE: Final = 0.5
"""Seconds past the deadline for whoever is trying to say what the matter was."""
_FIRST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 1.0
_LONGEST_CALL: Final = 30.0
_SHORTEST_CALL: Final = 0.1


def positive_seconds(field: str, seconds: float) -> float:
    """Return a time limit, or say what would be one."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
        raise InvalidInputError(f"{field}: got {seconds!r}; allowed: seconds, more than 0")
    return float(seconds)


class Attempts:
    """How calls are made, for all tables of a client."""

    def __init__(self, routes: RouteCache, connections: Connections, *, deadline: float) -> None:
        self.routes = routes
        self.connections = connections
        self.deadline = positive_seconds("deadline", deadline)
        self.endless = connections.options(None)
        """For streams."""
        self.closed = threading.Event()

    def begin(self, seconds: float | None = None) -> Trying:
        """Begin a call of a user's, whose time runs from now on."""
        self.check_open()
        return Trying(self, self.deadline if seconds is None else seconds)

    def check_open(self) -> None:
        """Say so where the client is closed."""
        if self.closed.is_set():
            raise _closed()

    def close(self) -> None:
        """Try nothing any more."""
        self.closed.set()


class Trying:
    """One call of a user's, until its deadline; any of the client's threads may work for it."""

    def __init__(self, attempts: Attempts, seconds: float) -> None:
        self.seconds = seconds
        self.until = time.monotonic() + seconds
        self._attempts = attempts
        self._routes = attempts.routes
        self._connections = attempts.connections

    @property
    def left(self) -> float:
        """Seconds."""
        return self.until - time.monotonic()

    def went_on(self) -> None:
        """Begin the time anew: a part of what is to be done is done."""
        self.until = time.monotonic() + self.seconds

    def wait(self, future: Future[_T]) -> _T:
        """Wait for something that is done for this call; TimeoutError past the deadline, which may move."""
        while not future.done() and self.left > -GRACE:
            wait([future], timeout=self.left + GRACE)
        try:
            return future.result(0)
        except CancelledError:
            raise _closed() from None

    def route(self, table: str, *, anew: bool = False) -> Route:
        """Where a table is; asked of all stores that are known, until one knows."""
        pause = _FIRST_PAUSE
        while True:
            try:
                return self._routes.table(table, anew=anew, until=self.until)
            except PASSING as error:
                pause = self._rest(pause, error)

    def names(self) -> list[str]:
        """The tables that there are."""
        pause = _FIRST_PAUSE
        while True:
            try:
                return self._routes.names(until=self.until)
            except PASSING as error:
                pause = self._rest(pause, error)

    def at_leader(self, route: Route, partition: int, call: Call[_T]) -> _T:
        """Have the leader of a partition do something."""
        return self._until(route, partition, call, anywhere=False)

    def anywhere(self, route: Route, partition: int, call: Call[_T]) -> _T:
        """Have any replica of a partition do something."""
        return self._until(route, partition, call, anywhere=True)

    def at(self, address: str, call: Call[_T]) -> _T:
        """Have one store do something, once."""
        options = self._connections.options(min(max(_SHORTEST_CALL, self.left), _LONGEST_CALL))
        try:
            return call(self._connections.to(address), options)
        except StoreError:
            raise
        except (pa.ArrowException, OSError) as error:
            raise store_error(error, at=address) from None

    def _until(self, route: Route, partition: int, call: Call[_T], *, anywhere: bool) -> _T:
        _check_partition(route, partition)
        pause, turn, anew = _FIRST_PAUSE, 0, False
        while True:
            try:
                known = self._same(route, anew=anew)
                return self.at(self._choose(known, partition, anywhere=anywhere, turn=turn), call)
            except PASSING as error:
                turn += 1
                anew = not self._corrected(route, partition, error)
                if anew or self.left <= 0:
                    pause = self._rest(pause, error)
            except TableDroppedError as error:
                # A store may not know yet of a table that has just been made.
                if not self._is_there(route):
                    raise _dropped(route) from None
                pause = self._rest(pause, error)

    def _rest(self, pause: float, error: StoreError) -> float:
        """Wait a little for another attempt, and return how long to wait the next time; or raise why, in the end."""
        if self.left <= 0:
            raise error
        if self._attempts.closed.wait(min(pause * random.uniform(0.5, 1.0), self.left)):
            raise _closed()
        return min(2 * pause, _LONGEST_PAUSE)

    def _same(self, route: Route, *, anew: bool) -> Route:
        """Return the newest that is known of the same table."""
        try:
            known = self._routes.table(route.name, anew=anew, until=self.until)
        except UnknownTableError:
            raise _dropped(route) from None
        if known.key != route.key:
            raise _dropped(route)
        return known

    def _is_there(self, route: Route) -> bool:
        try:
            return self.route(route.name, anew=True).key == route.key
        except StoreError:
            return False

    def _choose(self, route: Route, partition: int, *, anywhere: bool, turn: int) -> str:
        """Pick a store; where no leader is known, replicas in turn, for they may know who leads."""
        address = "" if anywhere else self._routes.address(route, partition)
        found = [address] if address else self._routes.anywhere(route, partition)
        if found:
            return found[turn % len(found)]
        raise UnavailableError(
            f"partition {partition} of table {route.name} has no leader, and no address of a replica is known; retry "
            "later, or look at the conditions of the Table"
        )

    def _corrected(self, route: Route, partition: int, error: StoreError) -> bool:
        """Whether the store itself said whom to ask instead."""
        if not isinstance(error, NotLeaderError) or not error.address:
            return False
        self._routes.correct(route.name, partition, error.store, error.address)
        return True


def _check_partition(route: Route, partition: int) -> None:
    if type(partition) is not int or not 0 <= partition < len(route.partitions):
        last = len(route.partitions) - 1
        raise UnknownTableError(f"table {route.name} has the partitions 0 to {last}, and {partition!r} was asked for")


def _dropped(route: Route) -> TableDroppedError:
    return TableDroppedError(f"table {route.name} was dropped")


def _closed() -> UnavailableError:
    return UnavailableError("the client is closed: make a new one")
