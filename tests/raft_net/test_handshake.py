"""Who may talk to whom, as a table."""

from __future__ import annotations

import re

import msgspec
import pytest

from evenkeel.versions import VersionRange
from evenkeel.wire.framing import Reason
from evenkeel_raft.net.peer_frames import VERSION, Hello
from evenkeel_raft.net.peer_handshake import greeting, judge_answer, judge_hello
from evenkeel_raft.shared.identity import Address, Identity

ME = Identity("c1", "store-0", "vol-0")
PEERS = {"store-0": Address("h", 1, "vol-0"), "store-1": Address("h", 2, "vol-1"), "store-2": Address("h", 3, "vol-2")}
GOOD = Hello(VERSION, "c1", "store-1", "vol-1", "store-0", "raft")


def test_greetings_are_accepted() -> None:
    """Two stores that know each other talk."""
    other = Identity("c1", "store-1", "vol-1")
    assert judge_hello(greeting(other, "store-0", "files"), me=ME, peers=PEERS) is None
    assert judge_answer(greeting(other, "store-0", "raft"), me=ME, peers=PEERS, dialled="store-1") is None


@pytest.mark.parametrize(
    ("hello", "reason", "said"),
    [
        (Hello(VERSION + 1), Reason.VERSION, f"version {VERSION} .* version {VERSION + 1}"),
        (Hello(VERSION, "c2", "store-1", "vol-1", "store-0"), Reason.CLUSTER, "cluster c1, store-1 to c2"),
        (Hello(VERSION, "c1", "store-1", "vol-1", "store-9"), Reason.MISDIRECTED, "this is store-0, not store-9"),
        (Hello(VERSION, "c1", "store-8", "vol-1", "store-0"), Reason.UNKNOWN_PEER, "no store called store-8"),
        (Hello(VERSION, "c1", "store-1", "vol-9", "store-0"), Reason.VOLUME, "volume vol-9, .* with vol-1"),
    ],
)
def test_wrong_hello_is_refused_by_either_end(hello: Hello, reason: Reason, said: str) -> None:
    """Each mismatch has a reason of its own, and says what met what."""
    refusals = [
        judge_hello(hello, me=ME, peers=PEERS),
        judge_answer(hello, me=ME, peers=PEERS, dialled="store-1"),
    ]
    for refusal in refusals:
        assert refusal is not None
        assert refusal.reason == reason
        assert re.search(said, refusal.detail)


def test_a_store_that_does_not_support_the_cluster_version_is_refused() -> None:
    """One of the first release, which says nothing, too; in a cluster of its time it is welcome."""
    for hello in (GOOD, msgspec.structs.replace(GOOD, supported=VersionRange(3, 4))):
        for refusal in (
            judge_hello(hello, me=ME, peers=PEERS, version=2),
            judge_answer(hello, me=ME, peers=PEERS, dialled="store-1", version=2),
        ):
            assert refusal is not None
            assert refusal.reason == Reason.VERSION
            assert re.search("cluster version is 2, and store-1 supports (1|3 to 4): run", refusal.detail)
    assert judge_hello(GOOD, me=ME, peers=PEERS, version=1) is None


def test_other_store_at_the_address() -> None:
    """Another known store that answers at a dialled address is not taken for the one that was dialled."""
    refusal = judge_answer(GOOD, me=ME, peers=PEERS, dialled="store-2")
    assert refusal is not None
    assert refusal.reason == Reason.MISDIRECTED
    assert "store-1 answers at the address of store-2" in refusal.detail


def test_unknown_purpose() -> None:
    """A purpose of a later version is refused, not guessed."""
    hello = Hello(VERSION, "c1", "store-1", "vol-1", "store-0", "gossip")
    refusal = judge_hello(hello, me=ME, peers=PEERS)
    assert refusal is not None
    assert refusal.reason == Reason.UNKNOWN_KIND
