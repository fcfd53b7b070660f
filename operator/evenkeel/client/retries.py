"""Calls that find the right store and are retried until their deadline.

Final errors are raised at once. `RETRYABLE` errors are retried, on another store or later: the leader moved, a store is
busy, full or unavailable, or the outcome is unknown, which write tokens make safe to retry.

A deadline applies to a user's call as a whole: all requests for it, to all partitions and stores, share the remaining
time. It is a progress timeout: each completed part of a call, such as a partition that was read or a group of batches
that was acknowledged, starts it again.
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

__all__ = ["RETRYABLE", "Retrier", "RetryingCall", "StoreRequest", "positive_seconds"]

_T = TypeVar("_T")
StoreRequest = Callable[[flight.FlightClient, flight.FlightCallOptions], _T]
RETRYABLE: Final = (BusyError, DiskFullError, NotLeaderError, OutcomeUnknownError, UnavailableError)
"""Errors that another store, or the same store later, may not return."""
_GRACE_SECONDS: Final = 0.5
"""Time past the deadline in which a worker thread may still report its error."""
_FIRST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 1.0
_LONGEST_REQUEST: Final = 30.0
_SHORTEST_REQUEST: Final = 0.1


def positive_seconds(field: str, seconds: float) -> float:
    """Return a time limit; `InvalidInputError` if it is not a positive number."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
        raise InvalidInputError(f"{field}: got {seconds!r}; allowed: seconds, more than 0")
    return float(seconds)


class Retrier:
    """Starts the retrying calls of a client."""

    def __init__(self, routes: RouteCache, connections: Connections, *, deadline: float) -> None:
        self.routes = routes
        self.connections = connections
        self.timeout = positive_seconds("deadline", deadline)
        self.no_timeout = connections.options(None)
        """Call options for streams."""
        self.closed = threading.Event()

    def begin(self, seconds: float | None = None) -> RetryingCall:
        """Start a user's call; its time starts now."""
        self.check_open()
        return RetryingCall(self, self.timeout if seconds is None else seconds)

    def check_open(self) -> None:
        """Raise `UnavailableError` if the client is closed."""
        if self.closed.is_set():
            raise _client_closed()

    def close(self) -> None:
        """End all retries."""
        self.closed.set()


class RetryingCall:
    """One call of a user, until its deadline; several threads of the client may work on it."""

    def __init__(self, retrier: Retrier, timeout: float) -> None:
        self.timeout = timeout
        self.deadline = time.monotonic() + timeout
        self._retrier = retrier
        self._routes = retrier.routes
        self._connections = retrier.connections

    @property
    def remaining(self) -> float:
        """Seconds until the deadline."""
        return self.deadline - time.monotonic()

    def extend_deadline(self) -> None:
        """Start the timeout again: a part of the call is complete."""
        self.deadline = time.monotonic() + self.timeout

    def wait(self, future: Future[_T]) -> _T:
        """Wait for a part of the call; `TimeoutError` past the deadline, which may be extended in the meantime."""
        while not future.done() and self.remaining > -_GRACE_SECONDS:
            wait([future], timeout=self.remaining + _GRACE_SECONDS)
        try:
            return future.result(0)
        except CancelledError:
            raise _client_closed() from None

    def route(self, table: str, *, refresh: bool = False) -> Route:
        """Return where a table is; asks all known stores until one knows."""
        return self._retry(lambda: self._routes.table(table, refresh=refresh, until=self.deadline))

    def table_names(self) -> list[str]:
        """Return the names of all tables."""
        return self._retry(lambda: self._routes.table_names(until=self.deadline))

    def at_leader(self, route: Route, partition: int, request: StoreRequest[_T]) -> _T:
        """Send a request to the leader of a partition."""
        return self._at_partition(route, partition, request, any_replica=False)

    def at_any_replica(self, route: Route, partition: int, request: StoreRequest[_T]) -> _T:
        """Send a request to any replica of a partition."""
        return self._at_partition(route, partition, request, any_replica=True)

    def at_store(self, address: str, request: StoreRequest[_T]) -> _T:
        """Send a request to one store, without retries."""
        options = self._connections.options(min(max(_SHORTEST_REQUEST, self.remaining), _LONGEST_REQUEST))
        try:
            return request(self._connections.to(address), options)
        except StoreError:
            raise
        except (pa.ArrowException, OSError) as error:
            raise store_error(error, at=address) from None

    def _retry(self, ask: Callable[[], _T]) -> _T:
        pause = _FIRST_PAUSE
        while True:
            try:
                return ask()
            except RETRYABLE as error:
                pause = self._back_off(pause, error)

    def _at_partition(self, route: Route, partition: int, request: StoreRequest[_T], *, any_replica: bool) -> _T:
        _check_partition(route, partition)
        pause, attempt, refresh = _FIRST_PAUSE, 0, False
        while True:
            try:
                known = self._same_table(route, refresh=refresh)
                address = self._choose(known, partition, any_replica=any_replica, attempt=attempt)
                return self.at_store(address, request)
            except RETRYABLE as error:
                attempt += 1
                refresh = not self._redirected(route, partition, error)
                if refresh or self.remaining <= 0:
                    pause = self._back_off(pause, error)
            except TableDroppedError as error:
                # A store may not know a new table yet.
                if not self._exists(route):
                    raise _table_dropped(route) from None
                pause = self._back_off(pause, error)

    def _back_off(self, pause: float, error: StoreError) -> float:
        """Wait before the next attempt and return the next pause; raise the error if the deadline has passed."""
        if self.remaining <= 0:
            raise error
        if self._retrier.closed.wait(min(pause * random.uniform(0.5, 1.0), self.remaining)):
            raise _client_closed()
        return min(2 * pause, _LONGEST_PAUSE)

    def _same_table(self, route: Route, *, refresh: bool) -> Route:
        """Return the newest route of the same table; `TableDroppedError` if another table has its name now."""
        try:
            known = self._routes.table(route.name, refresh=refresh, until=self.deadline)
        except UnknownTableError:
            raise _table_dropped(route) from None
        if known.key != route.key:
            raise _table_dropped(route)
        return known

    def _exists(self, route: Route) -> bool:
        try:
            return self.route(route.name, refresh=True).key == route.key
        except StoreError:
            return False

    def _choose(self, route: Route, partition: int, *, any_replica: bool, attempt: int) -> str:
        """Choose a store; if no leader is known, the replicas in turn, because they may know the leader."""
        address = "" if any_replica else self._routes.leader_address(route, partition)
        found = [address] if address else self._routes.replica_addresses(route, partition)
        if found:
            return found[attempt % len(found)]
        raise UnavailableError(
            f"partition {partition} of table {route.name} has no leader, and no address of a replica is known; retry "
            "later, or check the conditions of the Table"
        )

    def _redirected(self, route: Route, partition: int, error: StoreError) -> bool:
        """Whether the store named the leader; the route cache is corrected then."""
        if not isinstance(error, NotLeaderError) or not error.address:
            return False
        self._routes.correct(route.name, partition, error.store, error.address)
        return True


def _check_partition(route: Route, partition: int) -> None:
    if type(partition) is not int or not 0 <= partition < len(route.partitions):
        last = len(route.partitions) - 1
        raise UnknownTableError(f"table {route.name} has no partition {partition!r}; it has partitions 0 to {last}")


def _table_dropped(route: Route) -> TableDroppedError:
    return TableDroppedError(f"table {route.name} was dropped")


def _client_closed() -> UnavailableError:
    return UnavailableError("the client is closed; create a new one")
