"""The agent's small parts on their own."""

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


# Mirrors


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)])
def test_the_newest_word_on_a_key_stays(order: tuple[int, ...]) -> None:
    """A write, a read after it and a deletion after that arrive in any order: the key is gone."""
    mirror = KeyMirror()
    news: list[tuple[KeyValue | None, int]] = [(kv("k", 5), 5), (kv("k", 5), 7), (None, 9)]
    for at in order:
        found, revision = news[at]
        mirror.update("k", found, at=revision)
    assert mirror.get("k") is None
    assert list(mirror) == []


def test_only_changes_are_news() -> None:
    """A later read that finds the same says nothing new, and yet keeps older events out."""
    mirror = KeyMirror()
    assert mirror.update("k", kv("k", 5), at=5)
    assert not mirror.update("k", kv("k", 5), at=8)
    assert not mirror.update("k", None, at=7)
    assert mirror.update("k", None, at=9)
    assert not mirror.update("never", None, at=9)


def test_a_listing_tells_what_is_gone() -> None:
    """What was known and is not listed is absent; what is known as of later stays."""
    mirror = KeyMirror()
    mirror.update("old", kv("old", 3), at=3)
    mirror.update("new", kv("new", 12), at=12)
    mirror.update_all(Snapshot("", 10, (kv("listed", 4),)))
    assert sorted(found.key for found in mirror) == ["listed", "new"]


# Attempts


def test_waits_double_with_jitter_up_to_a_limit() -> None:
    """From 200 ms on, never longer than the limit, and never exactly as long as everybody else's."""
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


# Stores


def stores(**records: object) -> PeerRegistry:
    made = PeerRegistry(KEYS, "me")
    for name, record in records.items():
        key = KEYS.store(name) if isinstance(record, StoreRecord) else KEYS.store_state(name.removesuffix("_state"))
        made.apply(Event(key, kv(key, 5, record), 5))
    return made


def test_addresses_are_of_others() -> None:
    """Every registered store but this one, by host, port and volume."""
    known = stores(me=StoreRecord(volume="m", address="h:1"), b=StoreRecord(volume="v", address="[::1]:7000"))
    assert known.addresses(named=()) == {"b": Address("::1", 7000, "v")}


def test_a_registered_store_knows_its_address_best() -> None:
    """The operator's record is for while the store itself says nothing."""
    old = StoreState(volume="v1", record=StoreRecord(volume="v1", address="old:1"))
    known = stores(b_state=old, b=StoreRecord(volume="v2", address="new:2"))
    assert known.addresses(named=()) == {"b": Address("new", 2, "v2")}
    known.apply(Event(KEYS.store("b"), None, 9))
    assert known.addresses(named=()) == {"b": Address("old", 1, "v1")}


def test_a_store_that_vanished_is_forgotten_when_nobody_names_it() -> None:
    """Its lease ended, which says nothing about whether it lives."""
    known = stores(b=StoreRecord(volume="v", address="h:1"))
    known.addresses(named=())
    known.apply(Event(KEYS.store("b"), None, 9))
    assert known.addresses(named={"b"}) == {"b": Address("h", 1, "v")}
    assert known.addresses(named=()) == {}


@pytest.mark.parametrize("address", ["", "nowhere", ":7000", "host:port"])
def test_an_address_that_is_none_is_a_problem(address: str) -> None:
    """The store cannot be reached, and its name is among the problems."""
    known = stores(b=StoreRecord(volume="v", address=address))
    assert known.addresses(named=()) == {}
    assert known.problems == {"b": f"address {address!r} is not host:port"}
