"""Which store leads which partition: fetched from any store, cached, and refreshed when it proves wrong."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
import pyarrow as pa
from pyarrow import flight

from evenkeel.client.store_connections import Connections, store_error
from evenkeel.errors import UnavailableError, UnknownTableError
from evenkeel.rows.row_schema import RowSchema
from evenkeel.wire.flight import PartitionRoute, RoutesRequest, RoutesResult, TableRoutes, decode, encode

__all__ = ["Route", "RouteCache"]

_LONGEST_REQUEST: Final = 5.0
_SHORTEST_REQUEST: Final = 0.1


class Route(msgspec.Struct):
    """A table and the location of its partitions."""

    name: str
    key: str
    """Identifies this table, and not a later one with the same name."""
    schema: RowSchema
    partitions: list[PartitionRoute]


class RouteCache:
    """The routes of all tables of a client."""

    def __init__(self, seeds: Sequence[str], connections: Connections) -> None:
        self._seeds = tuple(seeds)
        self._connections = connections
        self._routes: dict[str, Route] = {}
        self._stores: dict[str, str] = {}
        self._last_answered = ""
        """The store that answered last is asked first: one that hangs costs its share of the time."""
        self._lock = threading.Lock()

    def table(self, name: str, *, until: float, refresh: bool = False) -> Route:
        """Return a table's route; `refresh` ignores the cache. `until` is a time of the monotonic clock."""
        with self._lock:
            known = self._routes.get(name)
        return known if known is not None and not refresh else self._fetch(name, until)

    def leader_address(self, route: Route, partition: int) -> str:
        """Return the address of a partition's leader; empty if it is unknown."""
        with self._lock:
            return self._stores.get(route.partitions[partition].leader, "")

    def replica_addresses(self, route: Route, partition: int) -> list[str]:
        """Return the known addresses of a partition's replicas, the leader first."""
        known = route.partitions[partition]
        with self._lock:
            found = [self._stores.get(store, "") for store in dict.fromkeys((known.leader, *known.replicas))]
        return [address for address in found if address]

    def replicas(self, route: Route, partition: int) -> dict[str, str]:
        """Return the address of each replica by store; empty if it is unknown."""
        with self._lock:
            return {store: self._stores.get(store, "") for store in route.partitions[partition].replicas}

    def correct(self, name: str, partition: int, store: str, address: str) -> None:
        """Record the leader that a store reported."""
        with self._lock:
            route = self._routes.get(name)
            if route is not None and partition < len(route.partitions):
                known = route.partitions[partition]
                route.partitions[partition] = msgspec.structs.replace(known, leader=store)
            self._stores[store] = address

    def table_names(self, *, until: float) -> list[str]:
        """Return the names of all tables."""
        return [found.name for found in next(self._answers("", until)).tables]

    def _fetch(self, name: str, until: float) -> Route:
        """Ask the stores in turn: a store may not know a new table yet."""
        for answer in self._answers(name, until):
            if answer.tables:
                route = _route(answer.tables[0])
                with self._lock:
                    self._routes[name] = route
                return route
        with self._lock:
            self._routes.pop(name, None)
        others = ", ".join(self.table_names(until=until)) or "none"
        raise UnknownTableError(f"no table is called {name}; there are: {others}")

    def _answers(self, name: str, until: float) -> Iterator[RoutesResult]:
        """Yield the answers of the stores in turn; `UnavailableError` if no store answers."""
        problems, answers = [], 0
        with self._lock:
            known = [self._last_answered, *self._stores.values(), *self._seeds]
        addresses = [address for address in dict.fromkeys(known) if address]
        for number, address in enumerate(addresses):
            share = max(_SHORTEST_REQUEST, (until - time.monotonic()) / (len(addresses) - number))
            try:
                answer = self._fetch_from(address, name, min(share, _LONGEST_REQUEST))
            except UnavailableError as error:
                problems.append(str(error))
                continue
            answers += 1
            with self._lock:
                self._stores.update(answer.stores)
                self._last_answered = address
            yield answer
        if not answers:
            raise UnavailableError("no store answers: " + "; ".join(problems))

    def _fetch_from(self, address: str, name: str, seconds: float) -> RoutesResult:
        body = encode(RoutesRequest(table=name))
        try:
            [result] = self._connections.to(address).do_action(
                flight.Action("routes", body), self._connections.options(seconds)
            )
        except (pa.ArrowException, OSError) as error:
            raise store_error(error, at=address) from None
        return decode(RoutesResult, result.body.to_pybytes())


def _route(found: TableRoutes) -> Route:
    schema = msgspec.json.decode(found.schema, type=RowSchema)
    return Route(found.name, found.key, schema, list(found.partitions))
