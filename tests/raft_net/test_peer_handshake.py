"""Which hellos are accepted and which are refused."""

from __future__ import annotations

import re

import msgspec
import pytest

from evenkeel.versions import VersionRange
from evenkeel.wire.framing import Reason
from evenkeel_raft.net.peer_frames import VERSION, Hello
from evenkeel_raft.net.peer_handshake import check_answer, check_hello, make_hello
from evenkeel_raft.shared.identity import Address, Identity

ME = Identity("c1", "store-0", "vol-0")
PEERS = {"store-0": Address("h", 1, "vol-0"), "store-1": Address("h", 2, "vol-1"), "store-2": Address("h", 3, "vol-2")}
GOOD = Hello(VERSION, "c1", "store-1", "vol-1", "store-0", "raft")


def test_greetings_are_accepted() -> None:
    """Two stores that know each other accept each other's hellos."""
    other = Identity("c1", "store-1", "vol-1")
    assert check_hello(make_hello(other, "store-0", "files"), me=ME, peers=PEERS) is None
    assert check_answer(make_hello(other, "store-0", "raft"), me=ME, peers=PEERS, dialled="store-1") is None


@pytest.mark.parametrize(
    ("hello", "reason", "expected"),
    [
        (Hello(VERSION + 1), Reason.VERSION, f"version {VERSION} .* version {VERSION + 1}"),
        (Hello(VERSION, "c2", "store-1", "vol-1", "store-0"), Reason.CLUSTER, "cluster c1, store-1 to c2"),
        (Hello(VERSION, "c1", "store-1", "vol-1", "store-9"), Reason.MISDIRECTED, "this is store-0, not store-9"),
        (Hello(VERSION, "c1", "store-8", "vol-1", "store-0"), Reason.UNKNOWN_PEER, "no peer named store-8"),
        (Hello(VERSION, "c1", "store-1", "vol-9", "store-0"), Reason.VOLUME, "volume vol-9, .* expects volume vol-1"),
    ],
)
def test_wrong_hello_is_refused_by_either_end(hello: Hello, reason: Reason, expected: str) -> None:
    """Each mismatch has its own reason and names both values."""
    refusals = [
        check_hello(hello, me=ME, peers=PEERS),
        check_answer(hello, me=ME, peers=PEERS, dialled="store-1"),
    ]
    for refusal in refusals:
        assert refusal is not None
        assert refusal.reason == reason
        assert re.search(expected, refusal.detail)


def test_a_store_that_does_not_support_the_cluster_version_is_refused() -> None:
    """A store is refused if it does not support the cluster version; the first release supports version 1 only."""
    for hello in (GOOD, msgspec.structs.replace(GOOD, supported=VersionRange(3, 4))):
        for refusal in (
            check_hello(hello, me=ME, peers=PEERS, version=2),
            check_answer(hello, me=ME, peers=PEERS, dialled="store-1", version=2),
        ):
            assert refusal is not None
            assert refusal.reason == Reason.VERSION
            assert re.search("cluster version is 2, but store-1 supports (1|3 to 4); run", refusal.detail)
    assert check_hello(GOOD, me=ME, peers=PEERS, version=1) is None


def test_other_store_at_the_address() -> None:
    """Another known store at the dialled address is refused."""
    refusal = check_answer(GOOD, me=ME, peers=PEERS, dialled="store-2")
    assert refusal is not None
    assert refusal.reason == Reason.MISDIRECTED
    assert "store-1 answers at the address of store-2" in refusal.detail


def test_unknown_purpose() -> None:
    """An unknown purpose is refused."""
    hello = Hello(VERSION, "c1", "store-1", "vol-1", "store-0", "gossip")
    refusal = check_hello(hello, me=ME, peers=PEERS)
    assert refusal is not None
    assert refusal.reason == Reason.UNKNOWN_KIND
