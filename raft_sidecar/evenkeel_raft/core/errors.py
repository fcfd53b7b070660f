"""Errors of the raft core: refused requests and broken invariants."""

from __future__ import annotations

from enum import Enum

__all__ = ["InvariantError", "RaftError", "Refusal", "RefusedError"]


class Refusal(Enum):
    """Why a request or message was refused; the value is the message for users."""

    NOT_LEADER = "this replica is not the leader"
    NO_LEADER = "the group has no known leader"
    TRANSFERRING = "leadership is being handed over; retry with the new leader"
    LEAVING = "the leader is not a voter of the incoming configuration; hand leadership over first"
    BUSY = "the apply backlog is full; retry later"
    CHANGE_PENDING = "an earlier configuration change or the term's first entry is not applied yet; retry later"
    BAD_CHANGE = "invalid configuration change"
    NOT_A_VOTER = "the transfer target is not a voter"
    COMPACTED = "the log is compacted past that index"
    NOT_APPLIED = "the index is not applied yet"
    WRONG_GROUP = "the message belongs to another group"
    WRONG_REPLICA = "the message is addressed to another replica id"
    OLD_GENERATION = "the message comes from an older generation of the group"
    NEW_GENERATION = "the message comes from a newer generation of the group; this replica is superseded"
    MALFORMED = "the message is malformed"


class RaftError(Exception):
    """Base class of the core's errors."""


class RefusedError(RaftError):
    """The request was refused and changed nothing; `leader` is the replica to try instead, or 0."""

    def __init__(self, reason: Refusal, *, leader: int = 0, detail: str = "") -> None:
        super().__init__(f"{reason.value}: {detail}" if detail else reason.value)
        self.reason = reason
        self.leader = leader


class InvariantError(RaftError):
    """Committed entries would be lost, or state is inconsistent. Stop the replica, keep its disk, report the error."""
