"""Messages between the replicas of a group.

Every message names its group, both replica ids and the generation. So messages from or to a wiped store that returned
under a new id, or a replica superseded by forced recovery, are detected. Each kind is a class with exactly the fields
it needs; an unknown kind cannot be decoded.
"""

from __future__ import annotations

from msgspec import Struct

from evenkeel_raft.core.raft_types import Entry, SnapshotMeta

__all__ = [
    "AnyMessage",
    "Append",
    "AppendResponse",
    "CommitNotice",
    "Heartbeat",
    "HeartbeatResponse",
    "InstallSnapshot",
    "Message",
    "ReadRequest",
    "ReadResponse",
    "SnapshotRequest",
    "TimeoutNow",
    "VoteRequest",
    "VoteResponse",
]


class Message(Struct, array_like=True, gc=False):
    """The header of every message."""

    group: int
    generation: int
    sender: int
    receiver: int
    term: int


class VoteRequest(Message, tag=1):
    """Requests a vote in `term`, or with `pre` a pre-vote, which changes nothing at the receiver.

    `transfer`: the leader requested this election, so receivers ignore its lease. `commit` and `commit_term` identify
    the newest entry that the sender knows to be committed.
    """

    last_index: int
    last_term: int
    pre: bool
    transfer: bool
    commit: int
    commit_term: int


class VoteResponse(Message, tag=2):
    """Grants or rejects a vote; carries the newest entry that the sender knows to be committed."""

    pre: bool
    granted: bool
    commit: int
    commit_term: int


class Append(Message, tag=3):
    """Entries that follow (prev_index, prev_term), and the leader's commit index."""

    prev_index: int
    prev_term: int
    commit: int
    entries: list[Entry]


class AppendResponse(Message, tag=4):
    """Accepted: the log is durable up to `index`, and the sender's durable commit index is `commit`.

    Rejected: the entry at `index` did not match; (hint_index, hint_term) is the newest that might. `stateless`: the
    sender's state machine is detached or has yet to restore the state that its log begins with.
    """

    index: int
    rejected: bool
    hint_index: int
    hint_term: int
    commit: int
    stateless: bool = False


class Heartbeat(Message, tag=5):
    """Sent periodically by the leader. `commit` never exceeds what the receiver acknowledged; `context` confirms reads.

    `committed` is the leader's own commit index, by which a restarted receiver sees whether it lags. `stateless` is the
    leader's view of the receiver; a receiver that differs responds instead of quiescing. It is None if the sender's
    release does not have the field.
    """

    commit: int
    context: int
    quiesce: bool
    committed: int = 0
    stateless: bool | None = None


class HeartbeatResponse(Message, tag=6):
    """Confirms the leader at `context`; `commit` and `stateless` are those of `AppendResponse`."""

    context: int
    commit: int
    stateless: bool = False


class CommitNotice(Message, tag=7):
    """A new commit index without entries. It has no response, because heartbeats repeat it."""

    commit: int


class InstallSnapshot(Message, tag=8):
    """Installs a snapshot; delivered after its files are in place and verified.

    `repair`: the sender is not the leader; it answers the `SnapshotRequest` of a leader that lost its state.
    """

    meta: SnapshotMeta
    repair: bool = False


class SnapshotRequest(Message, tag=9):
    """Requests a snapshot at `index` or later: the sender's log is intact, but its state machine lost its state.

    A follower sends it to its leader. A leader that cannot hand leadership over sends it to a member that has a state.
    """

    index: int


class TimeoutNow(Message, tag=10):
    """Sent by a leader that hands over: the receiver campaigns at once."""


class ReadRequest(Message, tag=11):
    """A read index request that a follower forwards to the leader."""

    context: int


class ReadResponse(Message, tag=12):
    """The read index: `index` was committed when a quorum confirmed the leader, after the request was made."""

    context: int
    index: int


AnyMessage = (
    VoteRequest
    | VoteResponse
    | Append
    | AppendResponse
    | Heartbeat
    | HeartbeatResponse
    | CommitNotice
    | InstallSnapshot
    | SnapshotRequest
    | TimeoutNow
    | ReadRequest
    | ReadResponse
)
