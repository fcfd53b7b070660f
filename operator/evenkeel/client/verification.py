"""Compares the replicas of a partition, and rebuilds those that differ from the majority."""

from __future__ import annotations

import time
from collections import Counter
from typing import Final

from msgspec import Struct
from pyarrow import flight

from evenkeel.client.retries import RetryingCall
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
    """The hashes of all replicas of a partition at one log index."""

    partition: int
    index: int
    leader: str
    """The leader's hash: the number of rows, and a sum over their contents."""
    replicas: dict[str, str]
    """Hashes by store; empty for a store that did not answer in time."""

    @property
    def rows(self) -> int:
        """The number of rows of the leader."""
        return int(self.leader.partition(":")[0])

    @property
    def differing(self) -> list[str]:
        """Stores whose rows differ from the leader's."""
        return sorted(store for store, found in self.replicas.items() if found not in ("", self.leader))

    @property
    def majority(self) -> str:
        """The hash of more than half of all replicas; empty if there is none."""
        [(found, count)] = Counter(self.replicas.values()).most_common(1) or [("", 0)]
        return found if 2 * count > len(self.replicas) else ""

    @property
    def wrong(self) -> list[str]:
        """Stores whose rows differ from the majority's."""
        majority = self.majority
        return sorted(store for store, found in self.replicas.items() if majority and found not in ("", majority))

    @property
    def silent(self) -> list[str]:
        """Stores that did not answer in time."""
        return sorted(store for store, found in self.replicas.items() if not found)


def verify_partition(call: RetryingCall, routes: RouteCache, route: Route, partition: int) -> Verified:
    """Make every replica hash its rows at one index, and collect the hashes until the deadline."""
    body = encode(HashRequest(table=route.key, partition=partition))

    def take_hash(client: flight.FlightClient, options: flight.FlightCallOptions) -> HashResult:
        [result] = client.do_action(flight.Action("hash", body), options)
        return decode(HashResult, result.body.to_pybytes())

    taken = call.at_leader(route, partition, take_hash)
    addresses = routes.replicas(call.route(route.name, refresh=True), partition)
    found = dict.fromkeys(addresses, "")
    while True:
        for store in [store for store, value in found.items() if not value and addresses[store]]:
            found[store] = _hash_at(call, addresses[store], route.key, partition, taken.index)
        if all(found.values()) or call.remaining <= 0:
            return Verified(partition, taken.index, taken.hash, found)
        time.sleep(_POLL_SECONDS)


def rebuild_wrong(call: RetryingCall, routes: RouteCache, route: Route, verified: Verified) -> list[str]:
    """Rebuild the replicas that differ from the majority; return their stores."""
    addresses = routes.replicas(call.route(route.name), verified.partition)
    request = RebuildRequest(
        table=route.key, partition=verified.partition, index=verified.index, hash=verified.majority
    )

    def send(client: flight.FlightClient, options: flight.FlightCallOptions) -> None:
        list(client.do_action(flight.Action("rebuild", encode(request)), options))

    for store in verified.wrong:
        call.at_store(addresses[store], send)
    return verified.wrong


def _hash_at(call: RetryingCall, address: str, table: str, partition: int, index: int) -> str:
    def send(client: flight.FlightClient, options: flight.FlightCallOptions) -> tuple[GroupStatus, ...]:
        [result] = client.do_action(flight.Action("status", encode(StatusRequest(table=table))), options)
        return decode(StatusResult, result.body.to_pybytes()).groups

    try:
        groups = call.at_store(address, send)
    except StoreError:
        return ""
    return next((group.hashes.get(index, "") for group in groups if group.partition == partition), "")
