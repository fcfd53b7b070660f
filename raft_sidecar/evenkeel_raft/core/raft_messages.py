"""What replicas of a group say to each other.

Every message names its group, both replica ids and the generation, so that a wiped store that came back under a new
id, or a replica superseded by forced recovery, can neither speak nor be spoken to by mistake. One class per kind: a
message has exactly the fields its kind needs, and an unknown kind cannot be decoded.
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
    """The header all kinds share."""

    group: int
    generation: int
    sender: int
    receiver: int
    term: int


class VoteRequest(Message, tag=1):
    """Asks for a vote in `term`; `pre` asks whether it would be given, and changes nothing.

    `transfer` says that the leader itself asked for this election, so its lease does not stand against it. The entry
    `commit` of `commit_term` is the newest that the sender knows to be committed.
    """

    last_index: int
    last_term: int
    pre: bool
    transfer: bool
    commit: int
    commit_term: int


class VoteResponse(Message, tag=2):
    """A vote, or a refusal; with the newest entry that the sender knows to be committed."""

    pre: bool
    granted: bool
    commit: int
    commit_term: int


class Append(Message, tag=3):
    """Entries that follow (prev_index, prev_term), and how far the log is committed."""

    prev_index: int
    prev_term: int
    commit: int
    entries: list[Entry]


class AppendResponse(Message, tag=4):
    """Accepted: the log is durable up to `index`, and the sender's durable commit index is `commit`.

    Rejected: the entry before `index + 1` did not match; (hint_index, hint_term) is the newest that might. `stateless`:
    the log is all there is, for the sender's state machine is away or has yet to restore what the log begins with.
    """

    index: int
    rejected: bool
    hint_index: int
    hint_term: int
    commit: int
    stateless: bool = False


class Heartbeat(Message, tag=5):
    """The leader lives. `commit` never exceeds what the receiver acknowledged; `context` confirms reads.

    `committed` is how far the leader itself is: a receiver that was restarted has nothing else to compare with.
    `stateless` is what the leader believes of the receiver: who knows better does not fall asleep, but answers. None:
    the sender is of a release that does not say.
    """

    commit: int
    context: int
    quiesce: bool
    committed: int = 0
    stateless: bool | None = None


class HeartbeatResponse(Message, tag=6):
    """Confirms the leader at `context`; `commit` is the sender's durable commit index, `stateless` as above."""

    context: int
    commit: int
    stateless: bool = False


class CommitNotice(Message, tag=7):
    """The commit index moved and there are no entries to carry the news. Not answered: heartbeats repeat it."""

    commit: int


class InstallSnapshot(Message, tag=8):
    """Delivered after the snapshot's files are in place and verified.

    `repair`: the sender does not lead. It was asked for its state by a leader that lost its own, and says nothing but
    what that state is.
    """

    meta: SnapshotMeta
    repair: bool = False


class SnapshotRequest(Message, tag=9):
    """The sender's log is intact but its state machine is not: it needs a snapshot at `index` or later.

    A follower asks its leader; a leader asks a member that has a state, for it cannot always hand over to one.
    """

    index: int


class TimeoutNow(Message, tag=10):
    """The leader hands over: campaign at once."""


class ReadRequest(Message, tag=11):
    """A follower's `read_index`."""

    context: int


class ReadResponse(Message, tag=12):
    """The leader was confirmed at a moment after the request was made; `index` was committed then."""

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
