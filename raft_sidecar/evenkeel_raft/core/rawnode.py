"""The node that a caller drives: messages and requests in, `ready` out, completions back in.

    node.step(message); node.tick(); node.propose(data); ...
    out = node.ready()
    send out.messages; answer out.read_states
    write out.append in order, fsync, then send its responses and call node.on_persisted(token)
    restore out.restore, then apply out.apply, then call node.on_applied(index)

Tokens complete in order: reporting one reports all earlier ones. Writes may be slow; the node continues without waiting
for them. After a disk error the caller must not report any further token.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from msgspec import Struct

from evenkeel_raft.core import election, follower_role, leader_role, raft
from evenkeel_raft.core.conf_history import ConfHistory
from evenkeel_raft.core.errors import InvariantError, Refusal
from evenkeel_raft.core.node_view import NodeView
from evenkeel_raft.core.raft_log import Log, Write
from evenkeel_raft.core.raft_messages import AppendResponse, HeartbeatResponse, Message
from evenkeel_raft.core.raft_snapshots import Snapshots
from evenkeel_raft.core.raft_state import NEVER_DUE, Raft, Ticks
from evenkeel_raft.core.raft_status import SoftState
from evenkeel_raft.core.raft_types import (
    CANDIDATE,
    EMPTY_META,
    GENESIS_INDEX,
    LEADER,
    ConfChange,
    Entry,
    HardState,
    Random,
    ReadState,
    Settings,
    SnapshotMeta,
)

__all__ = ["AppendBatch", "RawNode", "Ready"]

_NO_STATE: Final = HardState()
_REPORT_COMMIT: Final = (AppendResponse, HeartbeatResponse)


class AppendBatch(Struct, gc=False):
    """Records to write, in field order, and the responses to send once they are durable.

    A snapshot replaces the whole log. Entries replace the log from the first of them on. The hard state comes last
    because its commit index refers to these entries: if a torn write kept the hard state alone, it would mark the
    entries being replaced as committed.
    """

    token: int
    snapshot: SnapshotMeta | None
    entries: list[Entry]
    hard_state: HardState | None
    responses: list[Message]


class Ready(Struct, gc=False):
    """Work for the caller. `snapshots` lists the members that need a snapshot; see `Snapshots.send`."""

    append: AppendBatch | None
    restore: SnapshotMeta | None
    apply: list[Entry]
    messages: list[Message]
    read_states: list[ReadState]
    snapshots: list[int]
    soft_state: SoftState | None


class RawNode(NodeView):
    """One replica of one group."""

    __slots__ = ("_hard_state", "_token", "snapshots")

    def __init__(
        self,
        *,
        group: int,
        replica: int,
        rng: Random,
        generation: int = 0,
        settings: Settings | None = None,
        ticks: Ticks | None = None,
        meta: SnapshotMeta = EMPTY_META,
        hard_state: HardState = _NO_STATE,
        entries: Sequence[Entry] = (),
        applied: int | None = 0,
    ) -> None:
        """Start from the disk's contents: the log after `meta`, and the state machine's applied index.

        `applied` is None while no state machine is attached; see `attach`. A caller that passes `ticks` advances them
        itself and calls `run_due` instead of `tick`.
        """
        applied = None if applied is None else _not_behind(meta.index, applied)
        log = Log(meta, entries, commit=hard_state.commit, applied=applied)
        r = Raft(
            group=group,
            generation=generation,
            replica=replica,
            settings=settings or Settings(),
            rng=rng,
            ticks=ticks or Ticks(),
            log=log,
            confs=ConfHistory(meta),
            term=max(hard_state.term, log.last_term),
            vote=hard_state.vote if hard_state.term >= log.last_term else 0,
        )
        super().__init__(r)
        raft.apply_confs(r, max(log.applied, meta.index))
        r.durable_commit = hard_state.commit
        self._hard_state = hard_state
        self._token = 0
        self.snapshots = Snapshots(r)

    # Input

    def step(self, message: Message) -> Refusal | None:
        """Process a message from a peer; returns the reason if it is refused."""
        r = self._raft
        if message.receiver != r.replica or message.group != r.group or message.generation != r.generation:
            return raft.misdirected(r, message)
        if r.quiesced:
            if leader_role.is_stale_heartbeat_response(r, message) or leader_role.is_ping_from_non_member(r, message):
                return None
            r.wake()
        if message.term != r.term and not raft.update_term(r, message):
            return None
        return raft.HANDLERS[type(message)](r, message)

    def tick(self) -> bool:
        """Advance time by one tick unless quiesced; returns whether `ready` has work."""
        r = self._raft
        if not r.quiesced:
            r.ticks.now += 1
        return r.ticks.now >= r.due and self.run_due()

    def run_due(self) -> bool:
        """Run the timers that are `due` at this tick; returns whether `ready` has work."""
        r = self._raft
        raft.run_due(r)
        return bool(r.messages or r.read_states or r.responses or r.soft_state_changed)

    def propose(self, data: bytes) -> int:
        """Append an entry and return its index. It is committed once an entry with this index and `term` is applied."""
        return raft.propose(self._raft, data)

    def propose_many(self, payloads: Sequence[bytes]) -> int:
        """Append entries and return the index of the last one."""
        return raft.propose_many(self._raft, payloads)

    def propose_conf(self, change: ConfChange) -> int:
        """Append a configuration change and return its index."""
        return raft.propose_conf(self._raft, change)

    def read_index(self, context: int) -> None:
        """Request a linearizable read, answered in `Ready.read_states`; index 0 there means: request it again."""
        raft.read_index(self._raft, context)

    def transfer(self, to: int) -> None:
        """Hand leadership over to a voter; abandoned after an election timeout."""
        r = self._raft
        r.check_leading()
        r.wake()
        leader_role.start_transfer(r, to)

    def campaign(self) -> None:
        """Start an election without waiting for the timeout."""
        r = self._raft
        r.wake()
        election.campaign(r, transfer=False)

    # Output

    def ready(self) -> Ready:
        """Return all work that accumulated since the last call."""
        r, log, known = self._raft, self._raft.log, self._hard_state
        upto = log.committed if log.committed < log.durable else log.durable
        if log.needs_restore or log.detached:
            # No state machine can apply entries, but configurations must still take effect: the group may depend on
            # this log. This happens before replication, so that new members are in this very output.
            raft.apply_confs(r, upto)
        if r.role == LEADER:
            if r.reads.round_due:
                leader_role.broadcast_heartbeat(r)
            if r.replicate_due:
                leader_role.replicate(r)
        append = None
        if log.submitted < log.last_index or r.term != known.term or r.vote != known.vote or r.write_due:
            append = self._batch(r)
        elif r.responses:
            self._release(r)
        apply: list[Entry] = []
        if not log.needs_restore and not log.detached and upto > log.applying:
            apply = log.entries(log.applying, upto)
            log.applying = upto
        restore = None
        if log.restore_due is not None and not log.detached and log.restore_due.index <= log.durable:
            # Same rule as for entries: a state machine ahead of its log would look like a log that lost entries.
            restore, log.restore_due = log.restore_due, None
        soft_state = None
        if r.soft_state_changed:
            r.soft_state_changed, soft_state = False, SoftState(r.role, r.leader, r.term)
        out = Ready(append, restore, apply, r.messages, r.read_states, r.snapshots_wanted, soft_state)
        r.messages, r.read_states, r.snapshots_wanted = [], [], []
        return out

    def ready_messages(self) -> list[Message] | None:
        """Return the messages to send if there is no other work; None if the caller must use `ready`.

        This is a fast path for heartbeats and their responses, which outnumber all other messages.
        """
        r, log, known = self._raft, self._raft.log, self._hard_state
        upto = log.committed if log.committed < log.durable else log.durable
        if (
            upto > log.applying
            or log.submitted < log.last_index
            or r.term != known.term
            or r.vote != known.vote
            or r.replicate_due
            or r.reads.round_due
            or r.soft_state_changed
            or r.write_due
            or r.quiesced
            or r.responses
            or r.read_states
            or r.snapshots_wanted
            or log.needs_restore
            or log.detached
            or log.restore_due is not None
        ):
            return None
        messages, r.messages = r.messages, []
        return messages

    def _release(self, r: Raft) -> None:
        """Send responses when there is nothing to write, or defer them to the newest write in progress.

        While the disk stalls, the leader repeats its requests. Each response is deferred only once.
        """
        responses, r.responses = r.responses, []
        if r.log.writes:
            deferred = r.log.writes[-1].deferred
            deferred += [message for message in responses if message not in deferred]
        else:
            r.messages += _stamped(r, responses, self._hard_state.commit)

    def _batch(self, r: Raft) -> AppendBatch:
        log, known = r.log, self._hard_state
        hard_state = None
        if log.committed != known.commit or r.term != known.term or r.vote != known.vote:
            hard_state = self._hard_state = known = HardState(r.term, r.vote, log.committed)
        token = self._token = self._token + 1
        snapshot, vote_term = None, 0
        if r.write_due:
            r.write_due = False
            snapshot, log.unwritten_snapshot = log.unwritten_snapshot, None
            if r.role == CANDIDATE:
                vote_term = r.term
            follower_role.report_commit(r)
        entries = log.submit_entries()
        log.writes.append(Write(token, log.last_index, known.commit, vote_term, snapshot is not None))
        responses, r.responses = _stamped(r, r.responses, known.commit), []
        return AppendBatch(token, snapshot, entries, hard_state, responses)

    # Completions

    def on_persisted(self, token: int) -> bool:
        """Report that all batches up to this token are durable; returns whether `ready` has work."""
        r = self._raft
        log = r.log
        writes = log.writes
        while writes and writes[0].token <= token:
            write = writes.popleft()
            r.durable_commit = write.commit
            if write.last > log.durable:  # noqa: PLR1730  every write passes here
                log.durable = write.last
            if write.snapshot:
                log.snapshot_written(write)
            if write.deferred:
                r.messages += _stamped(r, write.deferred, write.commit)
            if write.vote_term == r.term and r.role == CANDIDATE:
                election.record_vote(r, r.replica, granted=True)
        me = r.tracker.me
        if me is not None:
            me.commit = r.durable_commit
            if me.acknowledge(log.durable):
                leader_role.maybe_commit(r)
        applicable = log.committed if log.committed < log.durable else log.durable
        pending = applicable > log.applying or r.replicate_due or r.soft_state_changed
        return pending or bool(r.messages) or log.restore_due is not None

    def on_applied(self, index: int) -> bool:
        """Report that the state machine applied or restored up to this index; returns whether `ready` has work."""
        r = self._raft
        log = r.log
        if index <= log.applied:
            return False
        if index > log.applying:
            raise InvariantError(f"index {index} was reported applied, but entries end at {log.applying}")
        log.applied = index
        if log.measured:
            log.applied_end = log.end_of(index)
        if not log.conf_indexes:
            return False
        raft.apply_confs(r, index)
        return True

    # State machine

    def attach(self, applied: int) -> None:
        """Attach a state machine that durably applied up to this index; it receives the entries after it.

        If the index is below the log's beginning, the state was lost and the node requests a snapshot.
        """
        r = self._raft
        log = r.log
        applied = _not_behind(log.offset, applied)
        if applied > log.last_index:
            raise InvariantError(
                f"the state machine applied {applied}, but the log lost entries: it ends at {log.last_index}"
            )
        was_quiesced = r.quiesced
        r.wake()
        r.schedule_tick(r.ticks.now + 1)
        r.commit_to(applied)
        raft.apply_confs(r, applied)
        log.attach(applied)
        r.reset_election_timeout()
        if was_quiesced and r.leader != r.replica:
            follower_role.ping_leader(r)

    def detach(self) -> None:
        """Detach the state machine; entries it did not report as applied are emitted again after `attach`.

        The node keeps voting and replicating, and campaigns only after the other voters had time to.
        """
        self._raft.log.detached = True
        self._raft.reset_election_timeout()

    def compact(self, index: int) -> SnapshotMeta:
        """Drop the log up to an index that the state machine applied durably; returns where the log now begins.

        The log writer must record the new beginning before it deletes anything.
        """
        meta = self.snapshots.meta(index)
        self._raft.log.compact(index)
        self._raft.confs.compact(index)
        return meta

    def set_receiving(self, receiving: bool) -> None:
        """Record whether a snapshot of the current term is arriving; a leader then requests no other one."""
        self._raft.receiving = receiving

    # Quiescence

    def quiesce(self, *, lost: Collection[int] = ()) -> bool:
        """Quiesce the group if this is its leader and nothing is left to do. Any message or request wakes a node.

        Members on lost stores need not be up to date; they wake the leader when they return.
        """
        r = self._raft
        if r.quiesced:
            return True
        if r.role != LEADER or not leader_role.can_quiesce(r, lost):
            return False
        leader_role.quiesce_group(r)
        r.due = NEVER_DUE
        return True

    def wake(self) -> None:
        """Restart the timers of a quiesced node."""
        self._raft.wake()

    def set_leadership_inhibited(self, leadership_inhibited: bool) -> None:
        """Set whether this replica campaigns only after the other voters had time to."""
        r = self._raft
        if r.leadership_inhibited != leadership_inhibited:
            r.leadership_inhibited = leadership_inhibited
            r.reset_election_timeout()


def _not_behind(offset: int, applied: int) -> int:
    """Treat an empty state machine as up to date with the genesis snapshot, which holds no state."""
    return GENESIS_INDEX if offset == GENESIS_INDEX and applied == 0 else applied


def _stamped(r: Raft, responses: list[Message], commit: int) -> list[Message]:
    """Set the commit index that is durable when the responses leave, and whether this replica is stateless."""
    stateless = r.log.stateless
    for message in responses:
        if isinstance(message, _REPORT_COMMIT):
            message.commit, message.stateless = commit, stateless
            r.reported_stateless = stateless
    return responses
