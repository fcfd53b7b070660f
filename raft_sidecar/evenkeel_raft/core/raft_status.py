"""Status of a node for configuration changes, metrics and debugging."""

from __future__ import annotations

from msgspec import Struct

from evenkeel_raft.core.raft_state import Raft
from evenkeel_raft.core.raft_types import JOINT, LEADER, ROLE_NAMES, Conf, decode_conf_change
from evenkeel_raft.core.tracker import NEVER, STATE_NAMES, Progress

__all__ = ["ConfMark", "PeerStatus", "SoftState", "Status", "leader_silent_ticks", "status_of"]


class SoftState(Struct, frozen=True, gc=False):
    """Volatile state that clients are routed by."""

    role: int
    leader: int
    term: int


class ConfMark(Struct, frozen=True, gc=False):
    """The parts of a configuration that the change protocol compares: index, change token and kind."""

    index: int
    token: int
    staged: bool
    joint: bool


class PeerStatus(Struct, frozen=True, gc=False):
    """The leader's view of a member.

    `bytes_behind` is None while the member needs a snapshot. `silent_ticks` is None until the member responded in this
    term. `snapshot_wanted`: the member needs a snapshot for its log or only for its state machine. `stateless`: the
    leader knows of no usable state machine at the member.
    """

    match: int
    next: int
    state: str
    commit: int
    bytes_behind: int | None
    silent_ticks: int | None
    snapshot_wanted: bool
    stateless: bool


class Status(Struct, frozen=True):
    """A consistent copy of a node's state.

    `newest` is the last configuration in the log, committed or not; `applied_conf` is the one in effect. `commit_known`
    is the commit index that a quorum of the applied configuration durably acknowledged; a configuration is settled once
    it reaches `applied_conf.index`. `leader_silent_ticks` counts from the leader's last message on a follower, and from
    the last contact with a quorum on a leader; None if there was none or the node is quiesced. `peers` is empty unless
    leading.
    """

    group: int
    generation: int
    replica: int
    role: str
    term: int
    leader: int
    offset: int
    last_index: int
    durable: int
    committed: int
    applied: int
    conf: Conf
    applied_conf: ConfMark
    newest: ConfMark
    committed_in_term: bool
    commit_known: int
    transfer_to: int
    leader_silent_ticks: int | None
    needs_restore: bool
    detached: bool
    quiesced: bool
    peers: dict[int, PeerStatus]


def status_of(r: Raft) -> Status:
    """Return the status of a node."""
    log, leading = r.log, r.role == LEADER
    return Status(
        group=r.group,
        generation=r.generation,
        replica=r.replica,
        role=ROLE_NAMES[r.role],
        term=r.term,
        leader=r.leader,
        offset=log.offset,
        last_index=log.last_index,
        durable=log.durable,
        committed=log.committed,
        applied=log.applied,
        conf=r.confs.current,
        applied_conf=_applied_mark(r),
        newest=_newest_mark(r),
        committed_in_term=leading and log.committed >= r.term_start,
        commit_known=r.tracker.commit_known() if leading else 0,
        transfer_to=r.transfer_to,
        leader_silent_ticks=leader_silent_ticks(r),
        needs_restore=log.needs_restore,
        detached=log.detached,
        quiesced=r.quiesced,
        peers={pr.replica: _peer_status(r, pr) for pr in r.tracker.peers},
    )


def leader_silent_ticks(r: Raft) -> int | None:
    """Return the ticks since there certainly was a leader; see `Status`."""
    contact = r.tracker.quorum_contact(r.now) if r.role == LEADER else r.leader_contact
    return None if r.quiesced or contact == NEVER else r.now - contact


def _applied_mark(r: Raft) -> ConfMark:
    conf = r.confs.current
    return ConfMark(r.confs.index, conf.token, conf.staged, conf.joint)


def _newest_mark(r: Raft) -> ConfMark:
    indexes = r.log.conf_indexes
    if not indexes or indexes[-1] <= r.confs.index:
        return _applied_mark(r)
    change = decode_conf_change(r.log.entry(indexes[-1]).data)
    return ConfMark(indexes[-1], change.token, change.staged, change.transition == JOINT)


def _peer_status(r: Raft, pr: Progress) -> PeerStatus:
    return PeerStatus(
        match=pr.match,
        next=pr.next,
        state=STATE_NAMES[pr.state],
        commit=pr.commit,
        bytes_behind=r.log.size(pr.match, r.log.last_index) if pr.match >= r.log.offset else None,
        silent_ticks=None if pr.last_contact == NEVER else r.now - pr.last_contact,
        snapshot_wanted=pr.snapshot_wanted,
        stateless=pr.stateless,
    )
