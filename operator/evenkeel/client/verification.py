"""Whether all replicas of a table have the same rows."""

from __future__ import annotations

import time
from collections import Counter
from typing import Final

from msgspec import Struct
from pyarrow import flight

from evenkeel.client.retries import Trying
from evenkeel.client.route_cache import Route, RouteCache
from evenkeel.errors import StoreError
from evenkeel.wire.flight import (
    GroupStatus,
    HashRequest,
    HashResult,
    RebuildRequest,
    StatusRequest,
    StatusResult,
    decode,
    encode,
)

__all__ = ["Verified", "rebuild_wrong", "verify_partition"]

_POLL_SECONDS: Final = 0.05


class Verified(Struct, frozen=True):
    """One partition at one index of its log."""

    partition: int
    index: int
    leader: str
    """The leader's hash: how many rows there are, and a sum of what is in them."""
    replicas: dict[str, str]
    """By store; empty for one that did not answer in time."""

    @property
    def rows(self) -> int:
        """How many rows the leader has."""
        return int(self.leader.partition(":")[0])

    @property
    def differing(self) -> list[str]:
        """Stores whose rows are not the leader's."""
        return sorted(store for store, found in self.replicas.items() if found not in ("", self.leader))

    @property
    def majority(self) -> str:
        """The hash that more than half of all replicas have; empty where none has so many."""
        [(found, count)] = Counter(self.replicas.values()).most_common(1) or [("", 0)]
        return found if 2 * count > len(self.replicas) else ""

    @property
    def wrong(self) -> list[str]:
        """Stores that have other rows than most."""
        majority = self.majority
        return sorted(store for store, found in self.replicas.items() if majority and found not in ("", majority))

    @property
    def silent(self) -> list[str]:
        """Stores of which nobody can tell."""
        return sorted(store for store, found in self.replicas.items() if not found)


def verify_partition(trying: Trying, routes: RouteCache, route: Route, partition: int) -> Verified:
    """Have every replica take its hash at one index, and gather them until the deadline."""
    body = encode(HashRequest(table=route.key, partition=partition))

    def take(client: flight.FlightClient, options: flight.FlightCallOptions) -> HashResult:
        [result] = client.do_action(flight.Action("hash", body), options)
        return decode(HashResult, result.body.to_pybytes())

    taken = trying.at_leader(route, partition, take)
    addresses = routes.replicas(trying.route(route.name, anew=True), partition)
    found = dict.fromkeys(addresses, "")
    while True:
        for store in [store for store, value in found.items() if not value and addresses[store]]:
            found[store] = _hash_at(trying, addresses[store], route.key, partition, taken.index)
        if all(found.values()) or trying.left <= 0:
            return Verified(partition, taken.index, taken.hash, found)
        time.sleep(_POLL_SECONDS)


def rebuild_wrong(trying: Trying, routes: RouteCache, route: Route, verified: Verified) -> list[str]:
    """Have the replicas that are not as most others are built anew; returns their stores."""
    addresses = routes.replicas(trying.route(route.name), verified.partition)
    request = RebuildRequest(
        table=route.key, partition=verified.partition, index=verified.index, hash=verified.majority
    )

    def ask(client: flight.FlightClient, options: flight.FlightCallOptions) -> None:
        list(client.do_action(flight.Action("rebuild", encode(request)), options))

    for store in verified.wrong:
        trying.at(addresses[store], ask)
    return verified.wrong


def _hash_at(trying: Trying, address: str, table: str, partition: int, index: int) -> str:
    def ask(client: flight.FlightClient, options: flight.FlightCallOptions) -> tuple[GroupStatus, ...]:
        [result] = client.do_action(flight.Action("status", encode(StatusRequest(table=table))), options)
        return decode(StatusResult, result.body.to_pybytes()).groups

    try:
        groups = trying.at(address, ask)
    except StoreError:
        return ""
    return next((group.hashes.get(index, "") for group in groups if group.partition == partition), "")
