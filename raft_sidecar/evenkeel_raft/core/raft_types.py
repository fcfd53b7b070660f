"""Types of the raft core: entries, configurations, hard state and settings.

Values are frozen, because a node, its log writer and its peers in the same process share them without copying. Sets of
replicas are sorted tuples, so that equal configurations encode to equal bytes.
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

# Kinds of entries. A no-op has its own kind, so that a state machine may log empty payloads.
NORMAL: Final = 0
CONF: Final = 1
NOOP: Final = 2

FOLLOWER: Final = 0
PRE_CANDIDATE: Final = 1
CANDIDATE: Final = 2
LEADER: Final = 3
ROLE_NAMES: Final = ("follower", "pre-candidate", "candidate", "leader")

# The operation that a change applies to one replica.
VOTER: Final = 0
LEARNER: Final = 1
REMOVE: Final = 2

# How a configuration entry takes effect.
SIMPLE: Final = 0  # changes learners, or only the token
JOINT: Final = 1  # enters a joint configuration; voters change only this way
LEAVE: Final = 2  # leaves it

# A group's first configuration is a synthetic snapshot, so that its first replicas agree on where the log begins.
GENESIS_INDEX: Final = 1
GENESIS_TERM: Final = 1


class Random(Protocol):
    """The part of `random.Random` that the core uses; the caller seeds it."""

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
    """Durable state of a replica: its term, its vote in that term, and its commit index."""

    term: int = 0
    vote: int = 0
    commit: int = 0


class Conf(Struct, frozen=True, array_like=True):
    """A configuration: the voters and learners of a group, and the token of the change that made it.

    While `outgoing` is not empty the configuration is joint: every decision needs a majority of `voters` and one of
    `outgoing`. `learners_next` are outgoing voters that become learners when the joint configuration is left; until
    then they vote. `info` is opaque data of the caller for each member, such as its store and volume.
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
        """Whether decisions need two majorities."""
        return bool(self.outgoing)

    def members(self) -> list[int]:
        """Return all replicas that the leader replicates to, including itself."""
        return sorted({*self.voters, *self.outgoing, *self.learners})

    def is_voter(self, replica: int) -> bool:
        """Whether the replica votes in either half."""
        return replica in self.voters or replica in self.outgoing


class Change(Struct, frozen=True, array_like=True):
    """A change of one replica: VOTER, LEARNER or REMOVE. Empty `info` keeps the member's present info."""

    op: int
    replica: int
    info: bytes = b""


class ConfChange(Struct, frozen=True, array_like=True):
    """The payload of a CONF entry. `token` and `staged` belong to the caller; the core only carries them."""

    transition: int
    changes: tuple[Change, ...] = ()
    token: int = 0
    staged: bool = False


class SnapshotMeta(Struct, frozen=True, array_like=True):
    """The index, term and configuration that a snapshot covers, or after which a compacted log begins."""

    index: int
    term: int
    conf: Conf


class ReadState(Struct, frozen=True, array_like=True, gc=False):
    """The result of `read_index(context)`: read once `index` is applied. Index 0: the request failed; repeat it."""

    context: int
    index: int


EMPTY_META: Final = SnapshotMeta(0, 0, Conf())

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(ConfChange)


def encode_conf_change(change: ConfChange) -> bytes:
    """Return the payload of a CONF entry."""
    return _encoder.encode(change)


def decode_conf_change(data: bytes) -> ConfChange:
    """Decode the payload of a CONF entry."""
    return _decoder.decode(data)


def genesis(conf: Conf) -> SnapshotMeta:
    """Return the synthetic snapshot that a new group's first replicas start from."""
    return SnapshotMeta(GENESIS_INDEX, GENESIS_TERM, conf)
