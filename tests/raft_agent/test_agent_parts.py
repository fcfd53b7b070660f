"""Unit tests of the agent's small parts."""

from __future__ import annotations

import random

import pytest

from evenkeel.metastore.metastore_api import Event, KeyValue, Snapshot
from evenkeel.protocol.records import StoreRecord, StoreState, encode
from evenkeel.runtime.clock import VirtualClock
from evenkeel.runtime.work_queue import WorkQueue
from evenkeel_raft.agent.agent_settings import AgentSettings, Tuning
from evenkeel_raft.agent.key_mirror import KeyMirror
from evenkeel_raft.agent.partition_retries import PartitionRetries
from evenkeel_raft.agent.peer_registry import PeerRegistry
from evenkeel_raft.shared.identity import Address
from evenkeel_raft.shared.raft_groups import Partition
from tests.protocol.support import KEYS
from tests.raft_agent.cluster import P0


def kv(key: str, mod: int, value: object = None) -> KeyValue:
    return KeyValue(key, encode(value), mod, mod, 1)


# Key mirror


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)])
def test_the_newest_revision_of_a_key_wins(order: tuple[int, ...]) -> None:
    """A write, a later read and a later deletion arrive in any order: the key is absent."""
    mirror = KeyMirror()
    news: list[tuple[KeyValue | None, int]] = [(kv("k", 5), 5), (kv("k", 5), 7), (None, 9)]
    for at in order:
        found, revision = news[at]
        mirror.update("k", found, at=revision)
    assert mirror.get("k") is None
    assert list(mirror) == []


def test_only_changes_are_reported() -> None:
    """A later read of the same value is no change, but older events are ignored afterwards."""
    mirror = KeyMirror()
    assert mirror.update("k", kv("k", 5), at=5)
    assert not mirror.update("k", kv("k", 5), at=8)
    assert not mirror.update("k", None, at=7)
    assert mirror.update("k", None, at=9)
    assert not mirror.update("never", None, at=9)


def test_a_listing_removes_absent_keys() -> None:
    """A known key that is not listed is absent; a key known at a later revision stays."""
    mirror = KeyMirror()
    mirror.update("old", kv("old", 3), at=3)
    mirror.update("new", kv("new", 12), at=12)
    mirror.update_all(Snapshot("", 10, (kv("listed", 4),)))
    assert sorted(found.key for found in mirror) == ["listed", "new"]


# Retries


def test_waits_double_with_jitter_up_to_a_limit() -> None:
    """Waits start at 200 ms, never exceed the limit, and are randomized."""
    clock = VirtualClock()
    retries = PartitionRetries(
        WorkQueue[Partition](clock), clock=clock, rng=random.Random(1), tuning=Tuning(AgentSettings())
    )
    waits: list[float] = []
    for _ in range(12):
        retries.retry_later(P0, "no luck")
        began = clock.now()
        while not retries.due(P0):
            clock.advance(0.01)
        waits.append(clock.now() - began)
    limits = [min(0.2 * 2**number, 30.0) for number in range(12)]
    assert all(limit / 2 <= wait <= limit + 0.02 for wait, limit in zip(waits, limits, strict=True))
    assert dict(retries.problems()) == {P0: "no luck (failed 12 times)"}
    retries.succeeded(P0)
    assert retries.due(P0)
    assert dict(retries.problems()) == {}


async def test_a_partition_reconciled_early_is_enqueued_for_its_retry() -> None:
    """An event before the retry time does not cancel the retry."""
    clock = VirtualClock()
    queue = WorkQueue[Partition](clock)
    retries = PartitionRetries(queue, clock=clock, rng=random.Random(1), tuning=Tuning(AgentSettings()))
    retries.retry_later(P0, "no luck")
    queue.add(P0)
    assert list(await queue.take_all()) == [P0]
    assert queue.idle
    assert not retries.due(P0)
    clock.advance(0.2)
    assert list(await queue.take_all()) == [P0]
    assert retries.due(P0)


# Peer registry


def stores(**records: object) -> PeerRegistry:
    made = PeerRegistry(KEYS, "me")
    for name, record in records.items():
        key = KEYS.store(name) if isinstance(record, StoreRecord) else KEYS.store_state(name.removesuffix("_state"))
        made.apply(Event(key, kv(key, 5, record), 5))
    return made


def test_addresses_exclude_this_store() -> None:
    """Every registered store except this one has host, port and volume."""
    known = stores(me=StoreRecord(volume="m", address="h:1"), b=StoreRecord(volume="v", address="[::1]:7000"))
    assert known.addresses(named=()) == {"b": Address("::1", 7000, "v")}


def test_a_registration_overrides_the_operators_record() -> None:
    """The operator's record is used only while the store is not registered."""
    old = StoreState(volume="v1", record=StoreRecord(volume="v1", address="old:1"))
    known = stores(b_state=old, b=StoreRecord(volume="v2", address="new:2"))
    assert known.addresses(named=()) == {"b": Address("new", 2, "v2")}
    known.apply(Event(KEYS.store("b"), None, 9))
    assert known.addresses(named=()) == {"b": Address("old", 1, "v1")}


def test_an_unregistered_store_is_forgotten_once_no_partition_names_it() -> None:
    """A store without a lease may be alive: its address stays known while a partition names it."""
    known = stores(b=StoreRecord(volume="v", address="h:1"))
    known.addresses(named=())
    known.apply(Event(KEYS.store("b"), None, 9))
    assert known.addresses(named={"b"}) == {"b": Address("h", 1, "v")}
    assert known.addresses(named=()) == {}


@pytest.mark.parametrize("address", ["", "nowhere", ":7000", "host:port"])
def test_an_invalid_address_is_a_problem(address: str) -> None:
    """A store with an invalid address is not connected to and is listed as a problem."""
    known = stores(b=StoreRecord(volume="v", address=address))
    assert known.addresses(named=()) == {}
    assert known.problems == {"b": f"address {address!r} is not host:port"}
