"""The leader's view of each member: how far its log matches, and how much may be sent to it.

PROBE sends one message and waits, because the matching index is a guess. REPLICATE streams ahead of acknowledgements;
entries between `match` and `next` are in flight. SNAPSHOT sends nothing, because the member needs entries that were
compacted. Invariant: match < next.
"""

from __future__ import annotations

from typing import Final

from evenkeel_raft.core.quorum import acknowledged, has_quorum, joint_acknowledged
from evenkeel_raft.core.raft_types import Conf

__all__ = ["NEVER", "PROBE", "REPLICATE", "SNAPSHOT", "STATE_NAMES", "Progress", "Tracker"]

PROBE: Final = 0
REPLICATE: Final = 1
SNAPSHOT: Final = 2
STATE_NAMES: Final = ("probe", "replicate", "snapshot")

NEVER: Final = -(1 << 62)


class Progress:
    """The replication progress of one member."""

    __slots__ = (
        "commit",
        "last_contact",
        "match",
        "next",
        "paused",
        "pending_snapshot",
        "read_ack",
        "replica",
        "sent_commit",
        "since",
        "snapshot_from",
        "snapshot_wanted",
        "state",
        "stateless",
    )

    def __init__(self, replica: int, *, next_index: int, since: int) -> None:
        self.replica = replica
        self.match = 0
        self.next = next_index
        self.state = PROBE
        self.paused = False  # a probe is in flight, until any response arrives
        self.pending_snapshot = 0
        self.snapshot_wanted = False
        self.snapshot_from = 0  # the member's log begins here, so an earlier snapshot is useless to it
        self.stateless = True  # until the member reports otherwise
        self.last_contact = NEVER
        self.since = since  # counts as contact, so that a new member does not make the leader step down
        self.sent_commit = 0
        self.commit = 0  # the durable commit index that the member reported
        self.read_ack = 0

    def acknowledge(self, index: int) -> bool:
        """Record that the member's log is durable up to the index; returns whether `match` advanced."""
        if index <= self.match:
            return False
        self.match = index
        if self.next <= index:
            self.next = index + 1
        return True

    def probe(self, next_index: int) -> None:
        """Enter PROBE."""
        self.state, self.paused, self.pending_snapshot = PROBE, False, 0
        self.next = max(next_index, self.match + 1)

    def replicate(self) -> None:
        """Enter REPLICATE after `match`."""
        self.state, self.paused, self.pending_snapshot = REPLICATE, False, 0
        self.next = self.match + 1

    def await_snapshot(self) -> None:
        """Enter SNAPSHOT: send nothing until a snapshot arrived."""
        self.state, self.paused, self.pending_snapshot = SNAPSHOT, False, 0

    def reject(self, index: int, hint: int) -> bool:
        """Handle a rejection of entries after `index`; returns false if the rejection is stale.

        In REPLICATE a rejection at or below `match` is stale; in PROBE any that does not answer the current probe.
        """
        if self.state == REPLICATE:
            if index <= self.match:
                return False
            self.probe(self.match + 1)
            return True
        if self.state != PROBE or self.next - 1 != index:
            return False
        self.probe(min(index, hint + 1))
        return True


class Tracker:
    """The progress of all members of the applied configuration; empty on followers."""

    __slots__ = ("incoming", "me", "outgoing", "peers", "progress")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Drop all progress."""
        self.progress: dict[int, Progress] = {}
        self.me: Progress | None = None
        self.peers: list[Progress] = []
        self.incoming: list[Progress] = []
        self.outgoing: list[Progress] = []

    def configure(self, conf: Conf, me: int, *, next_index: int, now: int) -> None:
        """Switch to a configuration: known members keep their progress, new ones are probed from `next_index`."""
        old = self.progress
        members = {*conf.members(), me}
        self.progress = {
            replica: old.get(replica) or Progress(replica, next_index=next_index, since=now)
            for replica in sorted(members)
        }
        self.me = self.progress[me]
        self.peers = [pr for replica, pr in self.progress.items() if replica != me]
        self.incoming = [self.progress[replica] for replica in conf.voters]
        self.outgoing = [self.progress[replica] for replica in conf.outgoing]

    def matched(self) -> int:
        """Return the highest index that a quorum holds durably."""
        values = [pr.match for pr in self.incoming]
        values.sort()
        index = values[(len(values) - 1) >> 1]
        if self.outgoing:
            index = min(index, acknowledged([pr.match for pr in self.outgoing]))
        return index

    def commit_known(self) -> int:
        """Return the highest commit index that a quorum has durably recorded."""
        return joint_acknowledged([pr.commit for pr in self.incoming], [pr.commit for pr in self.outgoing])

    def read_confirmed(self) -> int:
        """Return the newest read round that a quorum confirmed."""
        return joint_acknowledged([pr.read_ack for pr in self.incoming], [pr.read_ack for pr in self.outgoing])

    def quorum_contact(self, now: int) -> int:
        """Return the last tick at which a quorum certainly followed this leader, or NEVER."""
        if self.me is not None:
            self.me.last_contact = now
        return joint_acknowledged([pr.last_contact for pr in self.incoming], [pr.last_contact for pr in self.outgoing])

    def quorum_active(self, conf: Conf, *, since: int) -> bool:
        """Whether a quorum, including the leader, was in contact after the tick `since`."""
        active = {pr.replica for pr in self.peers if pr.last_contact > since or pr.since > since}
        if self.me is not None:
            active.add(self.me.replica)
        return has_quorum(conf.voters, conf.outgoing, active)
