"""Values that live in logs, snapshots and configurations.

They are shared freely between a node, its log writer and its peers in the same process, so they are frozen: nobody
has to copy an entry to be safe from somebody else. Sets of replicas are sorted tuples, so that equal configurations
are equal bytes.
"""

from __future__ import annotations

from typing import Final, Protocol

import msgspec
from msgspec import Struct

__all__ = [
    "CANDIDATE",
    "CONF",
    "EMPTY_META",
    "FOLLOWER",
    "GENESIS_INDEX",
    "GENESIS_TERM",
    "JOINT",
    "LEADER",
    "LEARNER",
    "LEAVE",
    "NOOP",
    "NORMAL",
    "PRE_CANDIDATE",
    "REMOVE",
    "ROLE_NAMES",
    "SIMPLE",
    "VOTER",
    "Change",
    "Conf",
    "ConfChange",
    "Entry",
    "HardState",
    "Random",
    "ReadState",
    "Settings",
    "SnapshotMeta",
    "decode_conf_change",
    "encode_conf_change",
    "genesis",
]

# Kinds of entries. A no-op is its own kind, so that a state machine may log empty payloads.
NORMAL: Final = 0
CONF: Final = 1
NOOP: Final = 2

FOLLOWER: Final = 0
PRE_CANDIDATE: Final = 1
CANDIDATE: Final = 2
LEADER: Final = 3
ROLE_NAMES: Final = ("follower", "pre-candidate", "candidate", "leader")

# What a change asks for one replica.
VOTER: Final = 0
LEARNER: Final = 1
REMOVE: Final = 2

# How a configuration entry takes effect.
SIMPLE: Final = 0  # learners, or nothing but a new token
JOINT: Final = 1  # enters a joint configuration; voters change only this way
LEAVE: Final = 2  # leaves it

# A group's first configuration is a synthetic snapshot: everybody who starts with it agrees on the log below it.
GENESIS_INDEX: Final = 1
GENESIS_TERM: Final = 1


class Random(Protocol):
    """The part of `random.Random` the core draws on; the caller seeds it."""

    def randrange(self, stop: int, /) -> int:
        """Return a number in [0, stop)."""
        ...


class Settings(Struct, frozen=True):
    """Limits and timing of one node; times are in ticks."""

    election_ticks: int = 10
    heartbeat_ticks: int = 1
    max_append_bytes: int = 1 << 20
    max_inflight_bytes: int = 8 << 20
    max_inflight_entries: int = 8192
    max_unapplied_bytes: int = 64 << 20


class Entry(Struct, frozen=True, array_like=True, gc=False):
    """One record of the replicated log."""

    index: int
    term: int
    kind: int
    data: bytes


class HardState(Struct, frozen=True, array_like=True, gc=False):
    """What a replica must not forget: its term, whom it voted for in it, and what it knew to be committed."""

    term: int = 0
    vote: int = 0
    commit: int = 0


class Conf(Struct, frozen=True, array_like=True):
    """A configuration: who votes, who only listens, and on whose order.

    `outgoing` is non-empty while the configuration is joint: then every decision needs a majority of `voters` and one
    of `outgoing`. `learners_next` are outgoing voters that become learners when the joint configuration is left; they
    may not be learners earlier, for they still vote. `info` is what the caller wants to know of each member (its
    store and volume).
    """

    voters: tuple[int, ...] = ()
    outgoing: tuple[int, ...] = ()
    learners: tuple[int, ...] = ()
    learners_next: tuple[int, ...] = ()
    token: int = 0
    staged: bool = False
    info: dict[int, bytes] = {}

    @property
    def joint(self) -> bool:
        """Whether two majorities are needed."""
        return bool(self.outgoing)

    def members(self) -> list[int]:
        """Everybody the leader replicates to, itself included."""
        return sorted({*self.voters, *self.outgoing, *self.learners})

    def is_voter(self, replica: int) -> bool:
        """Whether the replica votes in either half."""
        return replica in self.voters or replica in self.outgoing


class Change(Struct, frozen=True, array_like=True):
    """What becomes of one replica: VOTER, LEARNER or REMOVE. Empty `info` keeps what is known of a member."""

    op: int
    replica: int
    info: bytes = b""


class ConfChange(Struct, frozen=True, array_like=True):
    """The payload of a CONF entry. `token` and `staged` are the caller's; the core carries and shows them."""

    transition: int
    changes: tuple[Change, ...] = ()
    token: int = 0
    staged: bool = False


class SnapshotMeta(Struct, frozen=True, array_like=True):
    """The log's state at an index: where a snapshot, or a compacted log, begins."""

    index: int
    term: int
    conf: Conf


class ReadState(Struct, frozen=True, array_like=True, gc=False):
    """The answer to `read_index(context)`: read once `index` is applied. Index 0: failed, ask again."""

    context: int
    index: int


EMPTY_META: Final = SnapshotMeta(0, 0, Conf())

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(ConfChange)


def encode_conf_change(change: ConfChange) -> bytes:
    """Return the payload of a CONF entry."""
    return _encoder.encode(change)


def decode_conf_change(data: bytes) -> ConfChange:
    """Read the payload of a CONF entry."""
    return _decoder.decode(data)


def genesis(conf: Conf) -> SnapshotMeta:
    """Return the synthetic snapshot a new group's first replicas all start from."""
    return SnapshotMeta(GENESIS_INDEX, GENESIS_TERM, conf)
