"""One replica: what its node wants done, begun; and what others want of it, answered.

`work` takes the node's output and begins all of it: what is to be durable goes to the log, messages to peers, committed
entries to the state machine. Completions come back as callbacks, which feed the node and stir the replica again.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from evenkeel.protocol.records import ReplicaId
from evenkeel.protocol.replica_decision import leader_excludes
from evenkeel.wire.socket_messages import (
    Busy,
    Committed,
    NotLeader,
    ProposeOutcome,
    ReadAt,
    ReadOutcome,
    Unavailable,
    Unknown,
)
from evenkeel_raft.core.errors import InvariantError, Refusal, RefusedError
from evenkeel_raft.core.raft_messages import Append, Heartbeat, HeartbeatResponse, InstallSnapshot, Message
from evenkeel_raft.core.raft_state import NEVER_DUE
from evenkeel_raft.core.raft_status import SoftState
from evenkeel_raft.core.raft_types import LEADER, Entry, ReadState
from evenkeel_raft.core.rawnode import AppendBatch, RawNode
from evenkeel_raft.errors import LogError, LogFailedError
from evenkeel_raft.host.applier import Applier
from evenkeel_raft.host.host_context import HostContext
from evenkeel_raft.host.host_settings import HostSettings
from evenkeel_raft.host.replica_views import answers, has_caught_up
from evenkeel_raft.host.snapshot_sender import SnapshotSender
from evenkeel_raft.log.log_records import Append as AppendRecord
from evenkeel_raft.log.log_records import Compacted
from evenkeel_raft.shared.raft_configurations import configuration_of, member, store_of
from evenkeel_raft.shared.raft_groups import GroupReport, Partition

__all__ = ["Replica"]

log = logging.getLogger(__name__)

_NO_HINT: Final = NotLeader()
_BEATS: Final = frozenset((Heartbeat, HeartbeatResponse))


class Replica:
    """One replica of one group, as long as this volume holds it."""

    def __init__(
        self,
        partition: Partition,
        id_: ReplicaId,
        *,
        group: int,
        generation: int,
        node: RawNode,
        ports: HostContext,
        changed: Callable[[Replica], None],
    ) -> None:
        self.partition = partition
        self.id = id_
        self.group = group
        self.node = node
        self.stirred = False
        self.unwritten: AppendRecord | None = None
        """The group's beginning, where the log does not have it yet."""
        self.stopped = False
        self.broken = ""
        self._begun_at = ports.clock.now()
        self.keep_awake = False
        self.asleep = False
        self.due = NEVER_DUE
        """The tick at which the host looks at it again."""
        self.busy = False
        """Whether there was something to write or to apply since the host last looked."""
        self.busy_at = 0
        """The tick at which the host last found it busy."""
        self.without: frozenset[str] = frozenset()
        """Stores that were not there when the group fell asleep."""
        self.unresponsive = False
        """Whether the state machine is connected and has answered nothing for `lag_seconds`."""
        self.overfull = False
        """Whether more waits for the state machine than memory is there for: the leader has to wait as well."""
        self.log_bytes = 0
        """How long the log was when it was last weighed."""
        self.proposed_bytes = 0
        self.last_report: GroupReport | None = None
        """What was reported of it while it rests."""
        self._generation = generation
        self._ports = ports
        self.changed = partial(changed, self)
        """Tells the agent that something may be of interest."""
        self._stir = partial(ports.pump.stir, self)
        self._routes: dict[int, str] = {}
        self._conf_index = -1
        self._proposals: deque[tuple[int, int, Callable[[ProposeOutcome], None]]] = deque()
        self._reads: dict[int, Callable[[int], None]] = {}
        self._read_number = 0
        self._role = SoftState(0, 0, 0)
        self._settled_term = 0
        self._compact_at = 2 * ports.allowance.keep
        self.applier = Applier(
            node,
            group=group,
            replica=id_[1],
            partition=partition,
            ports=ports,
            stir=self._stir,
            changed=self._attachment_changed,
            advanced=self._compact_if_long,
            broken=self._break,
        )
        self.filler = SnapshotSender(node, group=group, replica=id_[1], ports=ports, store_of=self.store_of)
        self.filler.work = self.work
        self._learn_routes()

    # What the node wants done

    def work(self) -> None:
        """Begin everything that the node wants done now."""
        if self.stopped:
            return
        try:
            self._work()
        except Exception as error:  # whatever it is, other groups have their turn
            self._break(error)

    def _work(self) -> None:
        self.last_report = None
        out = self.node.ready()
        batch = out.append
        if batch is not None:
            self.busy = True
            record = AppendRecord(
                self.group, self.id[1], self._generation, batch.snapshot, batch.entries, batch.hard_state
            )
            self._ports.writer.submit(record, partial(self._persisted, batch))
        for message in out.messages:
            self._send(message)
        if out.restore is not None:
            self._answer_restored(out.restore.index)
            self.applier.restore(out.restore)
        if out.apply:
            self._answer_proposals(out.apply)
            self.applier.apply(out.apply, patient=not self.node.leading)
        for read in out.read_states:
            self._answer_read(read)
        for to in out.snapshots:
            self.filler.want(to)
        if out.soft_state is not None:
            self._take_role(out.soft_state)
        if self.node.conf_index != self._conf_index:
            self._learn_routes()
            self.changed()
        if self.node.committed_in_term and self._settled_term != self.node.term:
            # Before that nobody may be told who leads; on a slow disk it comes long after the election.
            self._settled_term = self.node.term
            self.changed()

    def _persisted(self, batch: AppendBatch) -> None:
        if self.stopped:
            return
        try:
            more = self.node.on_persisted(batch.token)
        except Exception as error:
            self._break(error)
            return
        for message in batch.responses:
            self._send(message)
        if more:
            self._stir()

    def _send(self, message: Message) -> None:
        if isinstance(message, InstallSnapshot):
            self.filler.announced(message)
            return
        store = self._routes.get(message.receiver)
        if store is not None:
            self._ports.peers.send(store, message)

    def _learn_routes(self) -> None:
        self._conf_index = self.node.conf_index
        conf = self.node.conf
        self._routes.update({number: store_of(conf, number) for number in conf.members()})
        self._keep_filling()

    def _keep_filling(self) -> None:
        """Fill on whom it is this replica's business to: a leader its members, any other its leader."""
        node = self.node
        self.filler.keep(set(node.conf.members()) if node.leading else {node.leader})

    def age(self) -> float:
        """For how many seconds it has been here, or since the start."""
        return self._ports.clock.now() - self._begun_at

    @property
    def settings(self) -> HostSettings:
        """The host's."""
        return self._ports.settings

    def store_of(self, number: int) -> str | None:
        """Where a member is."""
        return self._routes.get(number)

    def _break(self, error: Exception) -> None:
        """Stop for good, keeping what is on the disk: going on could lose what was promised."""
        expected = isinstance(error, InvariantError | LogError)
        self.broken = str(error) if expected else repr(error)
        if not isinstance(error, LogFailedError):  # which ends the process, and is said there
            log.error(
                "the replica stops: %s",
                self.broken,
                exc_info=None if expected else error,
                extra=self.partition.fields(),
            )
        self.stop()
        self.changed()

    def stop(self) -> None:
        """Take part in nothing any more."""
        if self.stopped:
            return
        self.stopped = True
        self._give_up_requests()
        self.filler.keep(set())
        self.applier.close()

    # Messages and time

    def step(self, store: str, message: Message) -> None:
        """Take in a peer's message."""
        if self.stopped:
            return
        if self.overfull and type(message) is Append:
            self._ports.tally.refused_messages["backlog"] += 1
            return
        if self._routes.get(message.sender) != store:
            self._routes[message.sender] = store
        try:
            refusal = self.node.step(message)
        except Exception as error:
            self._break(error)
            return
        if refusal is not None:
            self._ports.tally.refused_messages[refusal.name.lower()] += 1
        if type(message) in _BEATS and not self.asleep:
            self._send_or_stir()
        else:
            self._stir()

    def _send_or_stir(self) -> None:
        """Send, if that is all there is to be done: a turn costs several times as much as a heartbeat."""
        messages = self.node.ready_messages()
        if messages is None:
            self._stir()
            return
        for message in messages:
            self._send(message)

    def tick(self) -> None:
        """Let time pass."""
        if self.stopped:
            return
        node = self.node
        if node.needs_restore:
            node.set_receiving(self._ports.peers.receiving(self.group, node.replica, term=node.term))
        try:
            more = node.run_due()
        except Exception as error:
            self._break(error)
            return
        if more:
            self._send_or_stir()

    def wake(self) -> None:
        """Tick again."""
        self.node.wake()
        self._stir()

    # Roles

    @property
    def fit_to_lead(self) -> bool:
        """Whether there is a state machine beside it that has its state and gets on."""
        applier = self.applier
        return applier.attached and not applier.failing and not self.unresponsive and not self.node.lacks_state

    def set_unresponsive(self, unresponsive: bool) -> None:
        """Note that the state machine stopped answering, or answers again."""
        if unresponsive != self.unresponsive:
            self.unresponsive, self.last_report = unresponsive, None
            self.changed()

    def _take_role(self, soft: SoftState) -> None:
        was = self._role
        self._role = soft
        if was.role == LEADER and soft.role != LEADER:
            self._give_up_requests()
        self._keep_filling()
        if soft.role == LEADER and was.role != LEADER:
            self._ports.tally.elections_won += 1
        self.tell_role()
        self.changed()

    def tell_role(self) -> None:
        """Let the state machine know who leads."""
        soft = self._role
        hint = self._routes.get(soft.leader, "")
        self.applier.tell_role(leader=soft.role == LEADER, term=soft.term, hint=hint)

    def _attachment_changed(self) -> None:
        if self.applier.attached and not self.stopped:
            self.tell_role()
        self.changed()
        self._stir()

    def transfer_to(self, to: ReplicaId) -> bool:
        """Hand leadership to a replica by name."""
        return not self.stopped and self.node.leading and self.transfer(member(to))

    def hand_over(self) -> bool:
        """Let the fittest other voter lead; whether one takes over, or has."""
        status = self.node.status()
        if not self.node.leading or status.transfer_to:
            return True
        ticks = self._ports.settings.raft.election_ticks
        fit = {
            number: peer
            for number, peer in status.peers.items()
            if status.conf.is_voter(number)
            and answers(peer, ticks)
            and not peer.snapshot_wanted
            and (not status.conf.joint or number in status.conf.voters)
        }
        if not fit:
            return False
        near = [number for number, peer in fit.items() if has_caught_up(peer, self._ports.settings.caught_up_bytes)]
        repairable = self.applier.attached and self.node.lacks_state
        if not near and repairable and any(not peer.stateless for peer in status.peers.values()):
            return False  # a member that has a state sends it here; who else could lead has none either
        # Anybody: of two who are no better off than this one, each would else send leadership to the other for ever.
        return self.transfer(self._ports.rng.choice(near or [max(fit, key=lambda number: fit[number].match)]))

    def transfer(self, to: int) -> bool:
        """Hand leadership to a member."""
        try:
            self.node.transfer(to)
        except RefusedError:
            return False
        self._ports.tally.handed_over += 1
        self._stir()
        return True

    # Proposals and reads

    def propose(self, data: bytes, answer: Callable[[ProposeOutcome], None]) -> None:
        """Log an entry; the answer comes when its fate is known."""
        try:
            index = self.node.propose(data)
        except RefusedError as refused:
            answer(self._refusal(refused))
            return
        self._proposals.append((index, self.node.term, answer))
        self._ports.tally.proposals += 1
        self._ports.tally.proposed_bytes += len(data)
        self.proposed_bytes += len(data)
        self._stir()

    def _refusal(self, refused: RefusedError) -> ProposeOutcome:
        if refused.reason is Refusal.BUSY:
            return Busy()
        store = self._routes.get(refused.leader)
        return NotLeader(store) if store is not None and store != self.id[0] else _NO_HINT

    def _answer_proposals(self, committed: list[Entry]) -> None:
        """Entries up to the last of these are committed, here and for ever."""
        proposals, first, last = self._proposals, committed[0].index, committed[-1].index
        while proposals and proposals[0][0] <= last:
            index, term, answer = proposals.popleft()
            is_ours = index >= first and committed[index - first].term == term
            answer(Committed(index, term) if is_ours else Unknown())

    def _answer_restored(self, index: int) -> None:
        """Answer what a leader without a state took on, and gets back with the state: it is not handed out any more."""
        proposals = self._proposals
        while proposals and proposals[0][0] <= index:
            at, term, answer = proposals.popleft()
            answer(Committed(at, term) if self.node.term_at(at) == term else Unknown())

    def read_index(self, answer: Callable[[ReadOutcome], None]) -> None:
        """Find the index from which on a read that begins now may be answered."""
        self._ports.tally.reads += 1
        self._read(lambda index: answer(ReadAt(index) if index else Unavailable()))

    def judge(self, replica: ReplicaId, answer: Callable[[bool], None]) -> None:
        """Say whether a replica is excluded, once a quorum has confirmed that this one leads."""

        def confirmed(index: int) -> None:
            answer(bool(index) and self._excludes(replica))

        if self.node.leading and not self.stopped:
            self._read(confirmed)
        else:
            answer(False)

    def _excludes(self, replica: ReplicaId) -> bool:
        return self.node.leading and leader_excludes(
            replica,
            applied=configuration_of(self.node.conf),
            newest=configuration_of(self.node.newest_conf()),
            committed_in_term=self.node.status().committed_in_term,
        )

    def _read(self, answer: Callable[[int], None]) -> None:
        self._read_number += 1
        self._reads[self._read_number] = answer
        try:
            self.node.read_index(self._read_number)
        except RefusedError:
            self._answer_read(ReadState(self._read_number, 0))
            return
        self._stir()

    def _answer_read(self, read: ReadState) -> None:
        answer = self._reads.pop(read.context, None)
        if answer is not None:
            self.applier.flush()
            answer(read.index)

    def _give_up_requests(self) -> None:
        """Nobody can say any more what becomes of them."""
        proposals, self._proposals = self._proposals, deque()
        for _, _, answer in proposals:
            answer(Unknown())
        if self.stopped:
            for context in list(self._reads):
                self._answer_read(ReadState(context, 0))

    # Compaction

    def weigh(self) -> None:
        """See how long the log is, and whether more may be taken in."""
        unapplied = self.node.unapplied_bytes()
        self.log_bytes = self.node.applied_bytes() + unapplied
        self.overfull = unapplied > self._ports.allowance.most

    def _compact_if_long(self) -> None:
        """Do not wait until the host looks around: by then, steady writes have added a hundred megabytes."""
        if self.node.applied_bytes() >= self._compact_at:
            self.compact()
            # Where somebody needs what is left, there is no use in trying again at every entry.
            self._compact_at = self.node.applied_bytes() + self._ports.allowance.keep

    def compact(self) -> None:
        """Forget the part of the log that the state machine has and no member that answers needs."""
        keep, node = self._ports.allowance.keep, self.node
        if self.stopped or node.needs_restore or not self.applier.attached:
            return
        if node.applied_bytes() < 2 * keep:
            return
        upto = min(node.index_before(keep), max(self._needed(), self._most()))
        if upto > node.offset:
            meta = node.compact(upto)
            self.last_report = None
            self._ports.tally.compactions += 1
            self._ports.writer.submit(Compacted(self.group, self.id[1], self._generation, meta))

    def _most(self) -> int:
        """What goes even if somebody needs it: a log without bounds would be worse than another snapshot."""
        return self.node.index_before(self._ports.allowance.most)

    def _needed(self) -> int:
        """The index that the log must reach back to for those who are being brought up to date."""
        floors = [self.filler.floor] if self.filler.floor is not None else []
        ticks, offset = self._ports.settings.raft.election_ticks, self.node.offset
        if self.node.leading:
            peers = [peer for peer in self.node.status().peers.values() if answers(peer, ticks)]
            # Whom a snapshot has just reached has matched nothing yet, and goes on behind it.
            starts = [peer.match if peer.match >= offset else peer.next - 1 for peer in peers]
            floors += [start for start in starts if start >= offset]
        return min(floors, default=1 << 62)
