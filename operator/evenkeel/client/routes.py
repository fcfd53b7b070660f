"""Which store leads which partition: asked of any store, kept, and asked again when an answer showed it to be wrong."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final

import msgspec
import pyarrow as pa
from pyarrow import flight

from evenkeel.client.connections import Connections, store_error
from evenkeel.errors import StoreError, UnavailableError, UnknownTableError
from evenkeel.rows.schema import RowSchema
from evenkeel.wire.flight import PartitionRoute, RoutesRequest, RoutesResult, TableRoutes, decode, encode

__all__ = ["Route", "RouteCache"]

_ASK_SECONDS: Final = 5.0


class Route(msgspec.Struct):
    """A table and where its partitions are."""

    name: str
    key: str
    schema: RowSchema
    partitions: list[PartitionRoute]


class RouteCache:
    """Shared by all tables of a client."""

    def __init__(self, seeds: Sequence[str], connections: Connections) -> None:
        self._seeds = tuple(seeds)
        self._connections = connections
        self._routes: dict[str, Route] = {}
        self._stores: dict[str, str] = {}
        self._lock = threading.Lock()

    def table(self, name: str, *, anew: bool = False) -> Route:
        """A table's route; `anew` asks again."""
        with self._lock:
            known = self._routes.get(name)
        return known if known is not None and not anew else self._ask(name)

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

    def correct(self, route: Route, partition: int, store: str, address: str) -> None:
        """A store said who leads instead."""
        with self._lock:
            place = route.partitions[partition]
            route.partitions[partition] = msgspec.structs.replace(place, leader=store)
            if address:
                self._stores[store] = address

    def names(self) -> list[str]:
        """The tables that there are."""
        return [found.name for found in self._fetch("").tables]

    def _ask(self, name: str) -> Route:
        answer = self._fetch(name)
        if not answer.tables:
            raise UnknownTableError(f"no table is called {name}; there are: {', '.join(self.names()) or 'none'}")
        route = _route(answer.tables[0])
        with self._lock:
            self._routes[name] = route
        return route

    def _fetch(self, name: str) -> RoutesResult:
        """Ask one store after the other."""
        problems = []
        with self._lock:
            known = [*self._stores.values(), *self._seeds]
        for address in dict.fromkeys(known):
            try:
                answer = self._fetch_from(address, name)
            except StoreError as error:
                problems.append(f"{address}: {error}")
                continue
            with self._lock:
                self._stores.update(answer.stores)
            return answer
        raise UnavailableError("no store answers: " + "; ".join(problems))

    def _fetch_from(self, address: str, name: str) -> RoutesResult:
        body = encode(RoutesRequest(table=name))
        try:
            [result] = self._connections.to(address).do_action(
                flight.Action("routes", body), self._connections.options(_ASK_SECONDS)
            )
        except (pa.ArrowException, OSError) as error:
            raise store_error(error) from None
        return decode(RoutesResult, result.body.to_pybytes())


def _route(found: TableRoutes) -> Route:
    schema = msgspec.json.decode(found.schema, type=RowSchema)
    return Route(found.name, found.key, schema, list(found.partitions))
