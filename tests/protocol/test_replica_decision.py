"""When a sidecar starts a replica, and when it may delete one."""

from __future__ import annotations

import pytest

from evenkeel.protocol.group_configuration import Configuration, is_majority
from evenkeel.protocol.records import ReplicaId
from evenkeel.protocol.replica_decision import Start, excluded, leader_excludes, start
from tests.protocol.support import peers, read, stored

GENESIS = Configuration(peers("a1 b1 c1*"))


def ids(text: str) -> frozenset[ReplicaId]:
    return frozenset(peer.id for peer in peers(text))


@pytest.mark.parametrize(
    ("stable", "pending", "planned", "store", "volume", "held", "expected"),
    [
        # genesis: the same configuration for all replicas
        ("a1 b1 c1*", None, None, "a", "a-1", 0, Start(peers("a1")[0], GENESIS)),
        ("a1 b1 c1*", None, None, "c", "c-1", 0, Start(peers("c1*")[0], GENESIS)),
        ("a1 b1 c1*", "a1 b1 d2", None, "b", "b-1", 0, Start(peers("b1")[0], GENESIS)),
        # a volume that held it before, and one that is not named
        ("a1 b1 c1*", None, None, "a", "a-1", 1, None),
        ("a1 b1 c1*", None, None, "a", "a-2", 0, None),
        ("a1 b1 c1*", None, None, "d", "d-1", 0, None),
        # new replicas start empty, for any step of pending
        ("a1 b1 c1*", "a1 b1 d2", None, "d", "d-1", 0, Start(peers("d2")[0])),
        ("a1 b1 c1*", "a1 b1 d2* | a1 d2 e2", None, "e", "e-1", 0, Start(peers("e2")[0])),
        ("a1 b1 c1*", "a1 b1 c1* d2* | a1 d2 e2", None, "d", "d-1", 0, Start(peers("d2*")[0])),
        ("a1 b1 c1*", "a1 b2@2", None, "b", "b-2", 0, Start(peers("b2@2")[0])),
        ("a1 b1 c1*", "a1 b1 d5", None, "d", "d-1", 3, Start(peers("d5")[0])),
        # a planned replica is not started, and an older replica is never started again
        ("a1 b1 c1*", "a1 b1", "a1 d3", "d", "d-1", 0, None),
        ("a1 b1 c1*", "a1 b1 d2", None, "d", "d-1", 2, None),
        ("a1 b1 c1*", "a1 b1 d2", None, "d", "d-1", 3, None),
        # without stable nothing is started
        (None, "a1 b1 d2", None, "d", "d-1", 0, None),
        (None, None, None, "a", "a-1", 0, None),
    ],
)
def test_start(
    *,
    stable: str | None,
    pending: str | None,
    planned: str | None,
    store: str,
    volume: str,
    held: int,
    expected: Start | None,
) -> None:
    """A volume starts only replicas that name it and that it never held; with peers only at genesis."""
    view = read(stored(stable=stable, pending=pending, planned=planned, genesis=True))
    assert start(view, store=store, volume=volume, newest_held=held) == expected


def test_after_the_first_switch_replicas_start_empty() -> None:
    """Without the genesis mark a replica of stable starts empty, because its group has a history."""
    view = read(stored(stable="a1 b1 c1*"))
    assert start(view, store="a", volume="a-1", newest_held=0) == Start(peers("a1")[0])


@pytest.mark.parametrize(
    ("stable", "pending", "planned", "out"),
    [
        (None, None, None, False),
        (None, "a1 b1", None, False),
        ("a1 b1", None, None, True),
        ("a1 b1 d2", None, None, False),
        ("a1 b1 d2*", None, None, False),
        ("a1 b1", "a1 b1 d2* | a1 d2", None, False),
        ("a1 b1", "a1 b1 d2* | a1 b1 e2", None, False),
        ("a1 b1", "a1 b1 e2", "a1 d2", False),
        ("a1 b1", "a1 b1 e2", "a1 e2", True),
        ("a1 b1 d5", None, None, True),
        ("a1 b1 e2", None, None, True),
    ],
)
def test_exclusion(stable: str | None, pending: str | None, planned: str | None, out: bool) -> None:
    """A replica is excluded only if stable exists, and stable, pending and planned do not name its id."""
    view = read(stored(stable=stable, pending=pending, planned=planned))
    assert excluded(view, ("d", 2)) is out


@pytest.mark.parametrize(
    ("applied", "newest", "committed", "out"),
    [
        (Configuration(peers("a1 b1")), Configuration(peers("a1 b1")), True, True),
        (Configuration(peers("a1 b1")), Configuration(peers("a1 b1")), False, False),
        (Configuration(peers("a1 b1 d2")), Configuration(peers("a1 b1 d2")), True, False),
        (Configuration(peers("a1 b1"), peers("a1 d2")), Configuration(peers("a1 b1")), True, False),
        (Configuration(peers("a1 b1"), staged=peers("d2*")), Configuration(peers("a1 b1")), True, False),
        (Configuration(peers("a1 b1")), Configuration(peers("a1 b1"), staged=peers("d2*")), True, False),
        (Configuration(peers("a1 b1 d3")), Configuration(peers("a1 b1 d3")), True, True),
    ],
)
def test_leader_excludes(applied: Configuration, newest: Configuration, committed: bool, out: bool) -> None:
    """A leader that has committed in its term excludes replicas that are in no part of its configurations."""
    assert leader_excludes(("d", 2), applied=applied, newest=newest, committed_in_term=committed) is out


@pytest.mark.parametrize(
    ("configuration", "present", "decides"),
    [
        (Configuration(peers("a1 b1 c1")), "a1 b1", True),
        (Configuration(peers("a1 b1 c1")), "a1", False),
        (Configuration(peers("a1 b1")), "a1", False),
        (Configuration(peers("a1 b1*")), "a1", True),
        (Configuration(peers("a1 b1*")), "b1", False),
        (Configuration(peers("a1 b1 c1")), "a2 b2 c1", False),
        (Configuration(peers("d2 e2 f2"), peers("a1 b1 c1")), "a1 b1 d2 e2", True),
        (Configuration(peers("d2 e2 f2"), peers("a1 b1 c1")), "d2 e2 f2", False),
        (Configuration(peers("d2 e2 f2"), peers("a1 b1 c1")), "a1 b1 c1", False),
        (Configuration(peers("a1"), staged=peers("b2* c2*")), "a1", True),
    ],
)
def test_quorums(configuration: Configuration, present: str, decides: bool) -> None:
    """A quorum is more than half of the voters, in both halves of joint; learners and other ids do not count."""
    assert configuration.is_quorum(ids(present)) is decides


def test_no_voters_are_no_quorum() -> None:
    """A configuration without voters never has a quorum."""
    assert not is_majority(ids("a1"), ())


def test_members() -> None:
    """All members receive entries; voters are those of both halves."""
    configuration = Configuration(peers("a1 b1*"), peers("a1 c1"), peers("d2*"), token=7)
    assert configuration.joint
    assert configuration.members() == ids("a1 b1 c1 d2")
    assert configuration.voter_ids() == ids("a1 c1")
