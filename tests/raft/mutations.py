"""Known bugs, one per safety or liveness rule, that tests inject into the core to prove they are detected.

A mutation patches the core with pytest's monkeypatch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from evenkeel_raft.core import (
    conf_history,
    confchange,
    election,
    follower_role,
    leader_role,
    quorum,
    raft,
    raft_log,
    raft_snapshots,
    raft_state,
    rawnode,
    readonly,
    tracker,
)
from evenkeel_raft.core.raft_messages import (
    CommitNotice,
    Heartbeat,
    HeartbeatResponse,
    InstallSnapshot,
    Message,
    SnapshotRequest,
    VoteRequest,
)
from evenkeel_raft.core.raft_types import (
    CONF,
    JOINT,
    LEAVE,
    Conf,
    ConfChange,
    Entry,
    HardState,
    SnapshotMeta,
    encode_conf_change,
)
from tests.raft.sim import disk, host

Patch = pytest.MonkeyPatch
Mutation = Callable[[Patch], None]


def _handle(patch: Patch, kind: type[Message], handler: Callable[[raft_state.Raft, Any], None]) -> None:
    patch.setitem(cast("dict[type[Message], object]", raft.HANDLERS), kind, handler)


def ack_before_durable(patch: Patch) -> None:
    """Responses leave before the write is durable (etcd #8144)."""
    ready = rawnode.RawNode.ready

    def hasty(node: rawnode.RawNode) -> rawnode.Ready:
        out = ready(node)
        if out.append is not None:
            out.messages += out.append.responses
            out.append.responses = []
        return out

    patch.setattr(rawnode.RawNode, "ready", hasty)


def leader_counts_itself_early(patch: Patch) -> None:
    """The leader counts its own log before it is durable (etcd #14143)."""
    replicate = leader_role.replicate

    def counting(r: raft_state.Raft) -> None:
        replicate(r)
        if r.tracker.me is not None and r.tracker.me.acknowledge(r.log.last_index):
            leader_role.maybe_commit(r)

    patch.setattr(leader_role, "replicate", counting)


def old_term_committed_by_counting(patch: Patch) -> None:
    """A leader commits entries of earlier terms by counting."""
    maybe_commit = leader_role.maybe_commit

    def counting(r: raft_state.Raft) -> None:
        start, r.term_start = r.term_start, 0
        maybe_commit(r)
        r.term_start = start

    patch.setattr(leader_role, "maybe_commit", counting)


def append_cuts_log(patch: Patch) -> None:
    """An append that ends before the log truncates it (PySyncObj 0.3.17)."""
    append = raft_log.Log.maybe_append

    def cutting(self: raft_log.Log, prev_index: int, prev_term: int, entries: list[Entry]) -> bool:
        accepted = append(self, prev_index, prev_term, entries)
        after = prev_index + len(entries) + 1
        if accepted and after > self.committed:
            self._truncate(after)
        return accepted

    patch.setattr(raft_log.Log, "maybe_append", cutting)


def vote_forgotten(patch: Patch) -> None:
    """The vote is not written (jraft #96)."""
    batch = rawnode.RawNode._batch

    def forgetful(node: rawnode.RawNode, r: raft_state.Raft) -> rawnode.AppendBatch:
        written = batch(node, r)
        if written.hard_state is not None:
            written.hard_state = HardState(written.hard_state.term, 0, written.hard_state.commit)
        return written

    patch.setattr(rawnode.RawNode, "_batch", forgetful)


def vote_for_any_log(patch: Patch) -> None:
    """Votes are granted without comparing logs."""
    patch.setattr(raft_log.Log, "is_up_to_date", lambda self, last_index, last_term: True)


def candidate_asks_early(patch: Patch) -> None:
    """Votes are requested before the candidate's term and log are durable."""
    ask = election._request_votes

    def hasty(r: raft_state.Raft, *, pre: bool, transfer: bool) -> None:
        held, r.responses = r.responses, []
        ask(r, pre=pre, transfer=transfer)
        r.messages += r.responses
        r.responses = held

    patch.setattr(election, "_request_votes", hasty)


def read_without_quorum(patch: Patch) -> None:
    """The leader answers reads without confirming that it still leads."""
    patch.setattr(tracker.Tracker, "read_confirmed", lambda self: 1 << 60)


def read_before_first_commit(patch: Patch) -> None:
    """A new leader serves reads before its term's first commit (etcd #7331)."""

    def hasty(r: raft_state.Raft, context: int, origin: int) -> None:
        r.reads.add(readonly.Read(context, origin), r.log.committed)

    patch.setattr(leader_role, "read", hasty)


def read_rounds_not_numbered(patch: Patch) -> None:
    """Late responses to an old read round confirm a new one (raft #397)."""
    add = readonly.LeaderReads.add

    def unnumbered(self: readonly.LeaderReads, read: readonly.Read, commit: int) -> None:
        add(self, read, commit)
        self.round = read.round = 1

    patch.setattr(readonly.LeaderReads, "add", unnumbered)


def outgoing_half_ignored(patch: Patch) -> None:
    """A joint configuration decides by its incoming half alone."""
    configure = tracker.Tracker.configure

    def half(self: tracker.Tracker, conf: Conf, me: int, *, next_index: int, now: int) -> None:
        configure(self, conf, me, next_index=next_index, now=now)
        self.outgoing = []

    patch.setattr(tracker.Tracker, "configure", half)
    patch.setattr(election, "vote_result", lambda voters, outgoing, votes: quorum.vote_result(voters, (), votes))


def joint_skipped(patch: Patch) -> None:
    """New voters take effect without a joint configuration (jraft #482)."""

    def direct(conf: Conf, change: ConfChange) -> Conf:
        after = confchange.apply_change(conf, change)
        return Conf(after.voters, (), after.learners, (), after.token) if after.joint else after

    patch.setattr(conf_history, "apply_change", direct)


def changes_overlap(patch: Patch) -> None:
    """A joint configuration is left before it is applied."""
    propose_conf = raft.propose_conf

    def hasty(r: raft_state.Raft, change: ConfChange) -> int:
        index = propose_conf(r, change)
        if change.transition == JOINT:
            index += 1
            r.log.append(Entry(index, r.term, CONF, encode_conf_change(ConfChange(LEAVE, (), change.token))))
        return index

    patch.setattr(raft, "propose_conf", hasty)


def completion_covers_replacement(patch: Patch) -> None:
    """A completed write marks replaced entries as durable (etcd #1690)."""
    disclaim = raft_log.Log._lower_claims

    def claiming(self: raft_log.Log, index: int) -> None:
        claims = [write.last for write in self.writes]
        disclaim(self, index)
        for write, last in zip(self.writes, claims, strict=True):
            write.last = last

    patch.setattr(raft_log.Log, "_lower_claims", claiming)


def unapplied_conf_ignored(patch: Patch) -> None:
    """A voter campaigns with an unapplied configuration (etcd #12133)."""
    patch.setattr(election, "promotable", lambda r: r.confs.current.is_voter(r.replica))


def snapshot_with_newest_conf(patch: Patch) -> None:
    """A snapshot carries the current configuration instead of that of its index."""
    meta = raft_snapshots.Snapshots.meta

    def newest(self: raft_snapshots.Snapshots, index: int) -> SnapshotMeta:
        found = meta(self, index)
        return SnapshotMeta(found.index, found.term, self._raft.confs.current)

    patch.setattr(raft_snapshots.Snapshots, "meta", newest)


def snapshot_with_oldest_conf(patch: Patch) -> None:
    """A snapshot carries the log's first configuration and loses newer members."""
    patch.setattr(conf_history.ConfHistory, "as_of", lambda self, index: self._history[0][1])


def learners_counted(patch: Patch) -> None:
    """Learners' acknowledgements count as voters'."""
    configure = tracker.Tracker.configure

    def counting(self: tracker.Tracker, conf: Conf, me: int, *, next_index: int, now: int) -> None:
        configure(self, conf, me, next_index=next_index, now=now)
        if conf.learners:
            best = max(self.progress[learner].match for learner in conf.learners)
            self.incoming = sorted(self.incoming, key=lambda pr: pr.match)[1:] or self.incoming
            self.incoming.append(next(pr for pr in self.progress.values() if pr.match == best))

    patch.setattr(tracker.Tracker, "configure", counting)


def applied_before_durable(patch: Patch) -> None:
    """Committed entries are applied before this replica's own disk has them."""
    ready = rawnode.RawNode.ready

    def hasty(node: rawnode.RawNode) -> rawnode.Ready:
        entries_log = node._raft.log
        durable, entries_log.durable = entries_log.durable, entries_log.last_index
        out = ready(node)
        entries_log.durable = durable
        return out

    patch.setattr(rawnode.RawNode, "ready", hasty)


def minority_decides(patch: Patch) -> None:
    """Half of the voters counts as a majority."""

    def half(self: tracker.Tracker) -> int:
        values = sorted(pr.match for pr in self.incoming)
        index = values[len(values) // 2]
        return min(index, quorum.acknowledged([pr.match for pr in self.outgoing])) if self.outgoing else index

    patch.setattr(tracker.Tracker, "matched", half)


def commit_beyond_match(patch: Patch) -> None:
    """The leader sends its commit index without limiting it to the follower's match index."""
    ready = rawnode.RawNode.ready

    def unlimited(node: rawnode.RawNode) -> rawnode.Ready:
        out = ready(node)
        for message in out.messages:
            if isinstance(message, Heartbeat | CommitNotice):
                message.commit = node._raft.log.committed
        return out

    patch.setattr(rawnode.RawNode, "ready", unlimited)
    commit_to = raft_state.Raft.commit_to
    patch.setattr(raft_state.Raft, "commit_to", lambda self, index: commit_to(self, min(index, self.log.last_index)))


def repair_drops_log(patch: Patch) -> None:
    """A snapshot for a damaged state machine replaces the intact log as well."""

    def replacing(r: raft_state.Raft, m: InstallSnapshot) -> None:
        follower_role.follow(r, m.sender)
        if m.meta.index >= r.log.offset and m.meta.index > r.log.applied:
            r.log.restore(m.meta)
            r.confs.restore(m.meta)
            r.write_due = True
        follower_role._acknowledge(r, m.sender, r.log.committed)

    _handle(patch, InstallSnapshot, replacing)


def repair_without_check(patch: Patch) -> None:
    """A leader requests and restores any state, whether or not it matches its log."""

    def asking(r: raft_state.Raft) -> None:
        request_state(r)
        for message in r.messages:
            if isinstance(message, SnapshotRequest):
                message.index = 1

    def taking(r: raft_state.Raft, m: InstallSnapshot) -> None:
        if m.repair:
            follower_role._restore_state(r.log, m.meta)
        else:
            on_install_snapshot(r, m)

    request_state, on_install_snapshot = leader_role.request_state, follower_role.on_install_snapshot
    patch.setattr(leader_role, "request_state", asking)
    _handle(patch, InstallSnapshot, taking)


def repairer_followed(patch: Patch) -> None:
    """The sender of a repair snapshot is followed as leader."""

    def following(r: raft_state.Raft, m: InstallSnapshot) -> None:
        m.repair = False
        on_install_snapshot(r, m)

    on_install_snapshot = follower_role.on_install_snapshot
    _handle(patch, InstallSnapshot, following)


def hard_state_before_entries(patch: Patch) -> None:
    """A torn write keeps a commit index without its entries."""

    def reordered(batch: rawnode.AppendBatch) -> list[disk.Record]:
        state_first = [batch.snapshot, batch.hard_state, *batch.entries]
        return [record for record in state_first if record is not None]

    patch.setattr(disk, "records", reordered)


def failed_sync_reported(patch: Patch) -> None:
    """A failed fsync is reported as successful."""

    def hopeful(self: host.Host) -> None:
        if not self.disk_failed:
            sync(self)
        elif self.disk.queue:
            batch = self.disk.queue.popleft()
            self._synced(batch)

    sync = host.Host._sync
    patch.setattr(host.Host, "_sync", hopeful)


# Liveness


def tick_takes_read_round(patch: Patch) -> None:
    """A heartbeat starts a read round without answering reads that a single voter confirms alone."""
    tick = leader_role.tick_leader

    def silent(r: raft_state.Raft) -> None:
        with patch.context() as inner:
            inner.setattr(leader_role, "answer_reads", lambda r: None)
            tick(r)

    patch.setattr(leader_role, "tick_leader", silent)


def probe_never_repeated(patch: Patch) -> None:
    """A lost probe is never repeated."""
    handler = leader_role.on_heartbeat_response

    def deaf(r: raft_state.Raft, m: HeartbeatResponse) -> None:
        pr = r.tracker.progress.get(m.sender)
        paused = pr is not None and pr.paused
        handler(r, m)
        if pr is not None and paused:
            pr.paused = True

    _handle(patch, HeartbeatResponse, deaf)


def silent_below_commit(patch: Patch) -> None:
    """An append below the follower's commit index is ignored (scylladb #9552)."""
    acknowledge = follower_role._acknowledge

    def silent(r: raft_state.Raft, to: int, index: int) -> None:
        if index != r.log.committed or index == r.log.last_index != r.log.offset:
            acknowledge(r, to, index)

    patch.setattr(follower_role, "_acknowledge", silent)


def votes_carry_no_commit(patch: Patch) -> None:
    """Commit indexes in votes are ignored."""
    patch.setattr(election, "_learn_commit", lambda r, index, term: None)


def never_wakes(patch: Patch) -> None:
    """A quiesced node never wakes (tikv #16429)."""
    patch.setattr(raft_state.Raft, "wake", lambda self: None)


def stale_response_wakes(patch: Patch) -> None:
    """A response to an earlier heartbeat wakes a quiesced leader."""
    patch.setattr(leader_role, "is_stale_heartbeat_response", lambda r, m: False)


def any_response_is_stale(patch: Patch) -> None:
    """A leader stays quiesced although a member objects."""
    patch.setattr(leader_role, "is_stale_heartbeat_response", lambda r, m: isinstance(m, HeartbeatResponse))


def state_report_assumed_delivered(patch: Patch) -> None:
    """A member quiesces although its leader never received the report that it has a state."""
    on_heartbeat = follower_role.on_heartbeat

    def trusting(r: raft_state.Raft, m: Heartbeat) -> None:
        m.stateless = None
        on_heartbeat(r, m)

    _handle(patch, Heartbeat, trusting)


def quiesced_leader_not_pinged(patch: Patch) -> None:
    """A state machine reattaches without waking the quiesced leader."""
    patch.setattr(follower_role, "ping_leader", lambda r: None)
    patch.setattr(election, "ping_leader", lambda r: None)


def leader_never_requests_state(patch: Patch) -> None:
    """A stateless leader without another voter never requests a snapshot."""
    patch.setattr(leader_role, "request_state", lambda r: None)


def snapshot_index_ignored(patch: Patch) -> None:
    """A leader sends a member snapshots below the beginning of the member's log."""
    on_snapshot_request = leader_role.on_snapshot_request

    def ignoring(r: raft_state.Raft, m: SnapshotRequest) -> None:
        m.index = 0
        on_snapshot_request(r, m)

    patch.setattr(leader_role, "on_snapshot_request", ignoring)


def quiesces_without_quorum(patch: Patch) -> None:
    """An isolated leader quiesces as leader."""
    patch.setattr(leader_role, "quorum_without", lambda r, lost: True)


def learner_refuses_vote(patch: Patch) -> None:
    """A replica that believes it is a learner does not vote (etcd #12359)."""
    on_vote_request = election.on_vote_request

    def refusing(r: raft_state.Raft, m: VoteRequest) -> None:
        if r.confs.current.is_voter(r.replica):
            on_vote_request(r, m)

    _handle(patch, VoteRequest, refusing)


def conf_commit_not_reported(patch: Patch) -> None:
    """Members are removed before a quorum durably knows the configuration without them."""
    patch.setattr(tracker.Tracker, "commit_known", lambda self: 1 << 60)


def rejection_below_match(patch: Patch) -> None:
    """A stale rejection moves `next` down to `match` or below."""

    def falling(self: tracker.Progress, index: int, hint: int) -> bool:
        self.probe(0)
        self.next = min(index, hint + 1) or 1
        return True

    patch.setattr(tracker.Progress, "reject", falling)


def attached_where_it_was(patch: Patch) -> None:
    """A reattached state machine does not receive lost entries again."""
    attach = raft_log.Log.attach

    def forgetful(self: raft_log.Log, applied: int) -> None:
        applying = self.applying
        attach(self, applied)
        self.applying = max(applying, self.applying)

    patch.setattr(raft_log.Log, "attach", forgetful)


def attached_without_confs(patch: Patch) -> None:
    """A state machine ahead of the commit index skips configurations on attach."""

    def attach(node: rawnode.RawNode, applied: int) -> None:
        r = node._raft
        r.commit_to(applied)
        r.log.attach(max(applied, 1) if r.log.offset == 1 else applied)

    patch.setattr(rawnode.RawNode, "attach", attach)
