"""Why the core says no, and the one way it says that something is broken."""

from __future__ import annotations

from enum import Enum

__all__ = ["InvariantError", "RaftError", "Refusal", "RefusedError"]


class Refusal(Enum):
    """A reason; the value is what a person reads."""

    NOT_LEADER = "this replica is not the leader"
    NO_LEADER = "the group has no known leader"
    TRANSFERRING = "leadership is being handed over"
    LEAVING = "the leader is not a voter of the configuration being entered; hand leadership over"
    BUSY = "too much of the log is not applied yet"
    CHANGE_PENDING = "an earlier configuration change, or the term's first entry, is not applied yet"
    BAD_CHANGE = "the configuration change does not fit the configuration"
    NOT_A_VOTER = "the target of the transfer is not a voter"
    COMPACTED = "the log no longer reaches back to that index"
    NOT_APPLIED = "the index is not applied yet"
    WRONG_GROUP = "the message belongs to another group"
    WRONG_REPLICA = "the message is addressed to another replica id"
    OLD_GENERATION = "the message comes from an older generation of the group"
    NEW_GENERATION = "the message comes from a newer generation of the group: this replica is superseded"
    MALFORMED = "the message contradicts itself"


class RaftError(Exception):
    """Base of the core's errors."""


class RefusedError(RaftError):
    """The request was not carried out and left no trace; `leader` is the replica to try instead, or 0."""

    def __init__(self, reason: Refusal, *, leader: int = 0, detail: str = "") -> None:
        super().__init__(f"{reason.value}: {detail}" if detail else reason.value)
        self.reason = reason
        self.leader = leader


class InvariantError(RaftError):
    """Committed entries would be lost or state is contradictory: stop the replica, keep its disk, report."""
