"""The node a runner drives: requests in, `take` out, completions back in.

    node.step(message); node.tick(); node.propose(data); ...
    out = node.take()
    send out.messages; answer out.reads
    write out.append (in the order given), fsync, then send its responses and call node.on_persisted(token)
    restore out.restore, apply out.apply (in that order), then call node.on_applied(index)

Tokens complete in order: reporting one reports all before it. A write may take as long as it likes; the node goes on
meanwhile. After an error of the disk no token may be reported any more.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from msgspec import Struct

from evenkeel_raft.core import election, follower_role, leader_role, raft
from evenkeel_raft.core.conf_history import Confs
from evenkeel_raft.core.confchange import apply_change
from evenkeel_raft.core.errors import InvariantError, Refusal, RefusedError
from evenkeel_raft.core.raft_log import Log, Write
from evenkeel_raft.core.raft_messages import AppendResponse, HeartbeatResponse, InstallSnapshot, Message
from evenkeel_raft.core.raft_state import NEVER_DUE, Raft, Ticks
from evenkeel_raft.core.raft_status import SoftState, Status, leader_silent_ticks, status_of
from evenkeel_raft.core.raft_types import (
    CANDIDATE,
    EMPTY_META,
    GENESIS_INDEX,
    LEADER,
    ROLE_NAMES,
    Conf,
    ConfChange,
    Entry,
    HardState,
    Random,
    ReadState,
    Settings,
    SnapshotMeta,
    decode_conf_change,
)
from evenkeel_raft.core.tracker import SNAPSHOT

__all__ = ["AppendBatch", "Node", "Out"]

_NO_STATE: Final = HardState()
_REPORT_COMMIT: Final = (AppendResponse, HeartbeatResponse)


class AppendBatch(Struct, gc=False):
    """What to write, in this order, and what to send once it is durable.

    A snapshot replaces the whole log. Entries replace the log from the first of them on. The hard state comes last,
    because its commit index speaks of these entries: if a torn write kept it without them, it would declare whatever
    they were to replace to be committed.
    """

    token: int
    snapshot: SnapshotMeta | None
    entries: list[Entry]
    hard_state: HardState | None
    responses: list[Message]


class Out(Struct, gc=False):
    """What a node wants done. `snapshots` names members that need one: see `Node.send_snapshot`."""

    append: AppendBatch | None
    restore: SnapshotMeta | None
    apply: list[Entry]
    messages: list[Message]
    reads: list[ReadState]
    snapshots: list[int]
    soft: SoftState | None


class Node:
    """One replica of one group."""

    __slots__ = ("_hard_state", "_raft", "_token")

    def __init__(
        self,
        *,
        group: int,
        replica: int,
        random: Random,
        generation: int = 0,
        settings: Settings | None = None,
        ticks: Ticks | None = None,
        meta: SnapshotMeta = EMPTY_META,
        hard_state: HardState = _NO_STATE,
        entries: Sequence[Entry] = (),
        applied: int | None = 0,
    ) -> None:
        """Start from what the disk holds: the log from `meta` on, and how far the state machine has applied it.

        `applied` is None while there is no state machine: see `attach`. Whoever gives `ticks` counts them, and calls
        `look` instead of `tick`.
        """
        applied = None if applied is None else _not_behind(meta.index, applied)
        log = Log(meta, entries, commit=hard_state.commit, applied=applied)
        self._raft = Raft(
            group=group,
            generation=generation,
            replica=replica,
            settings=settings or Settings(),
            random=random,
            ticks=ticks or Ticks(),
            log=log,
            confs=Confs(meta),
            term=max(hard_state.term, log.last_term),
            vote=hard_state.vote if hard_state.term >= log.last_term else 0,
        )
        raft.apply_confs(self._raft, max(log.applied, meta.index))
        self._hard_state = hard_state
        self._raft.durable_commit = hard_state.commit
        self._token = 0

    # Input

    def step(self, message: Message) -> Refusal | None:
        """Take in a message from a peer; returns why, if it is refused."""
        r = self._raft
        if message.receiver != r.replica or message.group != r.group or message.generation != r.generation:
            return raft.misdirected(r, message)
        if r.quiesced:
            if leader_role.is_late_answer(r, message) or leader_role.is_strangers_call(r, message):
                return None
            r.wake()
        if message.term != r.term and not raft.settle_term(r, message):
            return None
        return raft.HANDLERS[type(message)](r, message)

    def tick(self) -> bool:
        """Let one tick pass; returns whether that gives `take` something to return. Nothing happens while quiesced."""
        r = self._raft
        if not r.quiesced:
            r.ticks.now += 1
        return r.ticks.now >= r.due and self.look()

    def look(self) -> bool:
        """Do what is `due` at this tick; returns whether that gives `take` something to return."""
        r = self._raft
        raft.look(r)
        return bool(r.messages or r.read_states or r.responses or r.soft_due)

    def propose(self, data: bytes) -> int:
        """Log an entry; returns its index. It is committed when an entry with this index and `term` is applied."""
        return raft.propose(self._raft, data)

    def propose_many(self, payloads: Sequence[bytes]) -> int:
        """Log entries; returns the index of the last."""
        return raft.propose_many(self._raft, payloads)

    def propose_conf(self, change: ConfChange) -> int:
        """Log a configuration change; returns its index."""
        return raft.propose_conf(self._raft, change)

    def read_index(self, context: int) -> None:
        """Ask for a linearizable read; answered in `Out.reads`, with index 0 if it must be asked again."""
        raft.read_index(self._raft, context)

    def transfer(self, to: int) -> None:
        """Hand leadership to a voter; given up after an election timeout."""
        r = self._raft
        r.check_leading()
        r.wake()
        leader_role.start_transfer(r, to)

    def campaign(self) -> None:
        """Stand for election without waiting for the timeout."""
        r = self._raft
        r.wake()
        election.campaign(r, transfer=False)

    # Output

    def take(self) -> Out:
        """Return everything to be done since the last call."""
        r, log, known = self._raft, self._raft.log, self._hard_state
        upto = log.committed if log.committed < log.durable else log.durable
        if log.needs_restore or log.detached:
            # Nobody can apply here, yet the configuration must not stay behind: this log may be the one that matters.
            # Its new members are to hear of it with this very output, for nothing may be left over to be taken.
            raft.apply_confs(r, upto)
        if r.role == LEADER:
            if r.reads.round_due:
                leader_role.broadcast_heartbeat(r)
            if r.replicate_due:
                leader_role.replicate(r)
        append = None
        if log.handed < log.last_index or r.term != known.term or r.vote != known.vote or r.write_due:
            append = self._batch(r)
        elif r.responses:
            self._release(r)
        apply: list[Entry] = []
        if not log.needs_restore and not log.detached and upto > log.applying:
            apply = log.entries(log.applying, upto)
            log.applying = upto
        restore = None
        if log.restore_due is not None and not log.detached and log.restore_due.index <= log.durable:
            # As with entries: a state machine that is ahead of its log would look like a log that lost some.
            restore, log.restore_due = log.restore_due, None
        soft = None
        if r.soft_due:
            r.soft_due, soft = False, SoftState(r.role, r.leader, r.term)
        out = Out(append, restore, apply, r.messages, r.read_states, r.snapshots_wanted, soft)
        r.messages, r.read_states, r.snapshots_wanted = [], [], []
        return out

    def take_messages(self) -> list[Message] | None:
        """Return what is to be sent, if that is all there is to be done; None: `take` has more to tell.

        A heartbeat and its answer are that, mostly, and there are more of them than of all else.
        """
        r, log, known = self._raft, self._raft.log, self._hard_state
        upto = log.committed if log.committed < log.durable else log.durable
        if (
            upto > log.applying
            or log.handed < log.last_index
            or r.term != known.term
            or r.vote != known.vote
            or r.replicate_due
            or r.reads.round_due
            or r.soft_due
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
        """There is nothing to write, but the responses may vouch for writes that are still under way.

        A disk that does not get on is asked the same again and again: what was promised once is not promised twice.
        """
        responses, r.responses = r.responses, []
        if r.log.writes:
            late = r.log.writes[-1].late
            late += [message for message in responses if message not in late]
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
        entries = log.hand_out()
        log.writes.append(Write(token, log.last_index, known.commit, vote_term, snapshot is not None))
        responses, r.responses = _stamped(r, r.responses, known.commit), []
        return AppendBatch(token, snapshot, entries, hard_state, responses)

    # Completions

    def on_persisted(self, token: int) -> bool:
        """All batches up to this token are durable; returns whether that gives `take` something to return."""
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
            if write.late:
                r.messages += _stamped(r, write.late, write.commit)
            if write.vote_term == r.term and r.role == CANDIDATE:
                election.record_vote(r, r.replica, granted=True)
        me = r.tracker.me
        if me is not None:
            me.commit = r.durable_commit
            if me.acknowledge(log.durable):
                leader_role.maybe_commit(r)
        applicable = log.committed if log.committed < log.durable else log.durable
        news = applicable > log.applying or r.replicate_due or r.soft_due
        return news or bool(r.messages) or log.restore_due is not None

    def on_applied(self, index: int) -> bool:
        """The state machine has applied, or restored, up to this index; returns whether `take` has something now."""
        r = self._raft
        log = r.log
        if index <= log.applied:
            return False
        if index > log.applying:
            raise InvariantError(f"{index} was reported applied, but only entries up to {log.applying} were handed out")
        log.applied = index
        if log.measured:
            log.applied_end = log.end_of(index)
        if not log.conf_indexes:
            return False
        raft.apply_confs(r, index)
        return True

    # The state machine comes and goes

    def attach(self, applied: int) -> None:
        """A state machine is there that has durably applied this much: hand out what follows.

        Below the log's beginning, it lost its state: the node then asks its leader for a snapshot.
        """
        r = self._raft
        log = r.log
        applied = _not_behind(log.offset, applied)
        if applied > log.last_index:
            raise InvariantError(f"{applied} was applied, but the log ends at {log.last_index}: it lost entries")
        asleep = r.quiesced
        r.wake()
        r.look_at(r.ticks.now + 1)
        r.commit_to(applied)
        raft.apply_confs(r, applied)
        log.attach(applied)
        r.draw_timeout()
        if asleep and r.leader != r.replica:
            follower_role.call_leader(r)

    def detach(self) -> None:
        """The state machine is gone, and with it whatever was handed out and not reported as applied.

        The node votes and replicates on, and campaigns only when nobody else does.
        """
        self._raft.log.detached = True
        self._raft.draw_timeout()

    # Snapshots and compaction

    def snapshot_meta(self, index: int) -> SnapshotMeta:
        """Return what goes with a snapshot of the state machine at this index: its term and configuration."""
        log = self._raft.log
        if index > log.applied:
            raise RefusedError(Refusal.NOT_APPLIED, detail=f"index {index}, applied {log.applied}")
        if index < log.offset:
            raise RefusedError(Refusal.COMPACTED, detail=f"index {index}, the log begins at {log.offset}")
        return SnapshotMeta(index, log.term(index), self._raft.confs.as_of(index))

    def send_snapshot(self, to: int, index: int) -> None:
        """A snapshot at this index is ready: let the message that goes with it follow its files.

        A leader sends it to members that want one, any other member to a leader that lost its state.
        """
        r = self._raft
        repair = r.role != LEADER
        if repair and to != r.leader:
            r.check_leading()
        meta = self.snapshot_meta(index)
        pr = r.tracker.progress.get(to)
        if not (r.leader_wants if repair else pr is not None and pr.snapshot_wanted):
            return
        if index < self.snapshot_floor(to):
            raise RefusedError(
                Refusal.NOT_APPLIED, detail=f"index {self.snapshot_floor(to)}, the snapshot's is {index}"
            )
        if pr is not None and pr.state == SNAPSHOT:
            pr.pending_snapshot = index
        r.messages.append(InstallSnapshot(r.group, r.generation, r.replica, to, r.term, meta, repair))

    def snapshot_floor(self, to: int) -> int:
        """Return the earliest index at which a snapshot is of use to a member: both logs must go on from it."""
        r = self._raft
        pr = r.tracker.progress.get(to)
        return max(r.log.offset, r.leader_wants if pr is None else pr.snapshot_from)

    def fills(self, to: int) -> bool:
        """Whether a snapshot for another replica is this one's business: a leader fills others, others their leader."""
        r = self._raft
        return to != r.replica and (to in r.tracker.progress if r.role == LEADER else to == r.leader)

    def report_snapshot(self, to: int) -> None:
        """The snapshot for a member was delivered, or will not be; go on from what the member says."""
        r = self._raft
        pr = r.tracker.progress.get(to)
        if pr is None:
            if to == r.leader:
                r.leader_wants = 0
            return
        pr.snapshot_wanted = False
        if pr.state == SNAPSHOT:
            pr.probe(max(pr.pending_snapshot, pr.match) + 1)
            pr.paused = True

    def compact(self, index: int) -> SnapshotMeta:
        """Forget the log up to an index that the state machine has durably; returns where the log now begins.

        The log writer records that before it drops anything.
        """
        meta = self.snapshot_meta(index)
        self._raft.log.compact(index)
        self._raft.confs.compact(index)
        return meta

    # Quiescence

    def quiesce(self, *, lost: Collection[int] = ()) -> bool:
        """Leader: fall asleep with the group if nothing is left to do. Any message or request wakes a node.

        Members on lost stores need not be up to date; they wake the leader when they come back.
        """
        r = self._raft
        if r.quiesced:
            return True
        if r.role != LEADER or not leader_role.can_quiesce(r, lost):
            return False
        leader_role.fall_asleep(r)
        r.due = NEVER_DUE
        return True

    def quorum_without(self, lost: Collection[int]) -> bool:
        """Whether the applied configuration has a quorum without these members."""
        return leader_role.quorum_without(self._raft, lost)

    def wake(self) -> None:
        """Tick again: the leader's store is gone, or there is work."""
        self._raft.wake()

    def set_leadership_inhibited(self, leadership_inhibited: bool) -> None:
        """Campaign only when nobody else does (the state machine here is gone or far behind)."""
        r = self._raft
        if r.leadership_inhibited != leadership_inhibited:
            r.leadership_inhibited = leadership_inhibited
            r.draw_timeout()

    def set_receiving(self, receiving: bool) -> None:
        """Note whether a snapshot of the current term is coming in: a leader without a state then asks nobody else."""
        self._raft.receiving = receiving

    # Looking

    @property
    def term(self) -> int:
        """The current term."""
        return self._raft.term

    @property
    def replica(self) -> int:
        """Who this is."""
        return self._raft.replica

    @property
    def role(self) -> str:
        """What it is at the moment."""
        return ROLE_NAMES[self._raft.role]

    @property
    def leading(self) -> bool:
        """Whether this replica is the leader."""
        return self._raft.role == LEADER

    @property
    def leader(self) -> int:
        """Who leads, or 0."""
        return self._raft.leader

    @property
    def leader_silent_ticks(self) -> int | None:
        """How long ago there certainly was a leader; see `Status`."""
        return leader_silent_ticks(self._raft)

    @property
    def due(self) -> int:
        """The tick at which to look at this node again, if nothing happens before."""
        return self._raft.due

    @property
    def quiesced(self) -> bool:
        """Whether this node sleeps."""
        return self._raft.quiesced

    @property
    def conf_index(self) -> int:
        """Where the applied configuration was logged."""
        return self._raft.confs.index

    @property
    def conf(self) -> Conf:
        """The applied configuration."""
        return self._raft.confs.current

    def newest_conf(self) -> Conf:
        """Return the newest configuration in log or snapshot, applied or not; exact where only one is not."""
        r = self._raft
        indexes = r.log.conf_indexes
        if not indexes or indexes[-1] <= r.confs.index:
            return r.confs.current
        return apply_change(r.confs.current, decode_conf_change(r.log.entry(indexes[-1]).data))

    @property
    def offset(self) -> int:
        """Where the log begins."""
        return self._raft.log.offset

    def term_at(self, index: int) -> int:
        """Return the term of an entry of the log; negative where the log does not reach."""
        return self._raft.log.term(index)

    @property
    def committed_in_term(self) -> bool:
        """Whether this replica leads and has committed something of its own term: it knows all that is committed."""
        return self.leading and self._raft.log.committed >= self._raft.term_start

    @property
    def lags(self) -> bool:
        """Whether a leader has committed more than this replica, which follows, has in its log."""
        return not self.leading and self._raft.log.committed < self._raft.told_commit

    @property
    def committed(self) -> int:
        """The commit index."""
        return self._raft.log.committed

    @property
    def applied(self) -> int:
        """The index that the state machine has."""
        return self._raft.log.applied

    @property
    def needs_restore(self) -> bool:
        """Whether the state machine waits for a snapshot."""
        return self._raft.log.needs_restore

    @property
    def lacks_state(self) -> bool:
        """Whether the state machine waits for a snapshot, or has yet to restore one that has arrived."""
        return self._raft.log.lacks_state

    @property
    def restoring(self) -> int:
        """The index of a snapshot that is on its way to the state machine, or 0."""
        log = self._raft.log
        due = log.restore_due or log.pending_snapshot
        return due.index if due is not None else 0

    def applied_bytes(self) -> int:
        """Return how many bytes of the log the state machine has already."""
        log = self._raft.log
        return log.size(log.offset, max(log.applied, log.offset))

    def unapplied_bytes(self) -> int:
        """Return how many bytes of the log the state machine does not have yet."""
        log = self._raft.log
        return log.size(max(log.applied, log.offset), log.last_index)

    def index_before(self, size: int) -> int:
        """Return the last applied index after which the log still has so many bytes; its beginning if it has less."""
        return self._raft.log.index_before(size)

    def status(self) -> Status:
        """Describe this node."""
        return status_of(self._raft)


def _not_behind(offset: int, applied: int) -> int:
    """The synthetic first snapshot holds no state, so an empty state machine is not behind it."""
    return GENESIS_INDEX if offset == GENESIS_INDEX and applied == 0 else applied


def _stamped(r: Raft, responses: list[Message], commit: int) -> list[Message]:
    """Let responses report the commit index that will be durable when they leave, and whether there is a state."""
    stateless = r.log.stateless
    for message in responses:
        if isinstance(message, _REPORT_COMMIT):
            message.commit, message.stateless = commit, stateless
            r.said_stateless = stateless
    return responses
