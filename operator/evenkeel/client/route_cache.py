"""Which store leads which partition: asked of any store, kept, and asked again when an answer showed it to be wrong."""

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

_ASK_SECONDS: Final = 5.0
_LEAST_SECONDS: Final = 0.1


class Route(msgspec.Struct):
    """A table and where its partitions are."""

    name: str
    key: str
    """Means this very table: not one of the same name that is made after it was dropped."""
    schema: RowSchema
    partitions: list[PartitionRoute]


class RouteCache:
    """Shared by all tables of a client."""

    def __init__(self, seeds: Sequence[str], connections: Connections) -> None:
        self._seeds = tuple(seeds)
        self._connections = connections
        self._routes: dict[str, Route] = {}
        self._stores: dict[str, str] = {}
        self._answers = ""
        """Who answered last, and is asked first: one that hangs costs its share of the time."""
        self._lock = threading.Lock()

    def table(self, name: str, *, until: float, anew: bool = False) -> Route:
        """A table's route; `anew` asks again, until then by the monotonic clock."""
        with self._lock:
            known = self._routes.get(name)
        return known if known is not None and not anew else self._ask(name, until)

    def address(self, route: Route, partition: int) -> str:
        """Where the leader of a partition answers; empty where that is not known."""
        with self._lock:
            return self._stores.get(route.partitions[partition].leader, "")

    def anywhere(self, route: Route, partition: int) -> list[str]:
        """Where any replica answers, the leader first."""
        place = route.partitions[partition]
        with self._lock:
            found = [self._stores.get(store, "") for store in dict.fromkeys((place.leader, *place.replicas))]
        return [address for address in found if address]

    def replicas(self, route: Route, partition: int) -> dict[str, str]:
        """Where each replica answers, by store; empty where that is not known."""
        with self._lock:
            return {store: self._stores.get(store, "") for store in route.partitions[partition].replicas}

    def correct(self, name: str, partition: int, store: str, address: str) -> None:
        """A store said who leads instead."""
        with self._lock:
            route = self._routes.get(name)
            if route is not None and partition < len(route.partitions):
                place = route.partitions[partition]
                route.partitions[partition] = msgspec.structs.replace(place, leader=store)
            self._stores[store] = address

    def names(self, *, until: float) -> list[str]:
        """The tables that there are."""
        return [found.name for found in next(self._answered("", until)).tables]

    def _ask(self, name: str, until: float) -> Route:
        """A store that does not know a table may just not have heard of it: only all together can say so."""
        for answer in self._answered(name, until):
            if answer.tables:
                route = _route(answer.tables[0])
                with self._lock:
                    self._routes[name] = route
                return route
        with self._lock:
            self._routes.pop(name, None)
        others = ", ".join(self.names(until=until)) or "none"
        raise UnknownTableError(f"no table is called {name}; there are: {others}")

    def _answered(self, name: str, until: float) -> Iterator[RoutesResult]:
        """Yield what one store after the other says; `UnavailableError` where none does."""
        problems, answers = [], 0
        with self._lock:
            known = [self._answers, *self._stores.values(), *self._seeds]
        addresses = [address for address in dict.fromkeys(known) if address]
        for number, address in enumerate(addresses):
            share = max(_LEAST_SECONDS, (until - time.monotonic()) / (len(addresses) - number))
            try:
                answer = self._fetch_from(address, name, min(share, _ASK_SECONDS))
            except UnavailableError as error:
                problems.append(str(error))
                continue
            answers += 1
            with self._lock:
                self._stores.update(answer.stores)
                self._answers = address
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
