"""One replica: connects a raft node with the log, the peers and the state machine.

`process_ready` takes the node's output and starts all of it: records go to the log, messages to peers, committed
entries to the state machine. Completions return as callbacks, which feed the node and enqueue the replica again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from evenkeel.protocol.records import ReplicaId
from evenkeel_raft.core.errors import InvariantError, RefusedError
from evenkeel_raft.core.raft_messages import Append, Heartbeat, HeartbeatResponse, InstallSnapshot, Message
from evenkeel_raft.core.raft_state import NEVER_DUE
from evenkeel_raft.core.raft_status import SoftState
from evenkeel_raft.core.raft_types import LEADER
from evenkeel_raft.core.rawnode import AppendBatch, RawNode
from evenkeel_raft.errors import LogError, LogFailedError
from evenkeel_raft.host.applier import Applier
from evenkeel_raft.host.caught_up import has_caught_up, is_answering
from evenkeel_raft.host.host_context import HostContext
from evenkeel_raft.host.host_settings import HostSettings
from evenkeel_raft.host.log_compaction import LogCompaction
from evenkeel_raft.host.proposals import Proposals
from evenkeel_raft.host.read_requests import ReadRequests
from evenkeel_raft.host.snapshot_sender import SnapshotSender
from evenkeel_raft.log.log_records import Append as AppendRecord
from evenkeel_raft.shared.raft_configurations import member, store_of
from evenkeel_raft.shared.raft_groups import GroupReport, Partition

__all__ = ["Replica"]

log = logging.getLogger(__name__)

_HEARTBEATS: Final = frozenset((Heartbeat, HeartbeatResponse))


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
        context: HostContext,
        on_change: Callable[[Replica], None],
    ) -> None:
        """`on_change` notifies the agent that the replica's state may be of interest."""
        self.partition = partition
        self.id = id_
        self.group = group
        self.generation = generation
        self.node = node
        self.genesis_record: AppendRecord | None = None
        """The group's first record, if the log does not have it yet."""
        self.stopped = False
        self.failure = ""
        """Why the replica stopped, if it failed."""
        self.unresponsive = False
        """Whether the state machine is connected and has not answered for `lag_seconds`."""
        self.last_report: GroupReport | None = None
        """The report made since the replica became idle."""
        self._init_schedule()
        self._context = context
        self._started_at = context.clock.now()
        self.notify_change = partial(on_change, self)
        self._enqueue = partial(context.ready_queue.enqueue, self)
        self._routes: dict[int, str] = {}
        self._conf_index = -1
        self._role = SoftState(0, 0, 0)
        self._settled_term = 0
        self._init_parts()
        self._update_routes()

    def _init_schedule(self) -> None:
        """Create what `ReadyQueue` and `HostMaintenance` keep about the replica."""
        self.queued = False
        """Whether the replica is in the ready queue."""
        self.keep_awake = False
        self.asleep = False
        self.due = NEVER_DUE
        """The tick at which the host runs the replica's timers next."""
        self.busy = False
        """Whether there was something to write since the host's last sweep."""
        self.busy_at = 0
        """The tick at which a sweep last found the replica busy."""
        self.missing_stores: frozenset[str] = frozenset()
        """Stores that have been disconnected since the group fell asleep, or before."""

    def _init_parts(self) -> None:
        context, node, replica = self._context, self.node, self.id[1]
        self.compaction = LogCompaction(self, context)
        self.applier = Applier(
            node,
            group=self.group,
            replica=replica,
            partition=self.partition,
            context=context,
            enqueue=self._enqueue,
            on_change=self._on_attachment_change,
            on_advance=self.compaction.compact_if_long,
            on_failure=self._fail,
        )
        self.proposals = Proposals(
            node, store=self.id[0], store_of=self.store_of, counters=context.counters, enqueue=self._enqueue
        )
        self.reads = ReadRequests(
            node, counters=context.counters, enqueue=self._enqueue, before_answer=self.applier.flush
        )
        self.snapshot_sender = SnapshotSender(
            node, group=self.group, replica=replica, context=context, store_of=self.store_of
        )
        self.snapshot_sender.process_ready = self.process_ready

    # The node's output

    def process_ready(self) -> None:
        """Start everything that the node has ready."""
        if self.stopped:
            return
        try:
            self._process_ready()
        except Exception as error:  # a bug in one group must not stop the others
            self._fail(error)

    def _process_ready(self) -> None:
        self.last_report = None
        ready = self.node.ready()
        if ready.append is not None:
            self._append(ready.append)
        for message in ready.messages:
            self._send(message)
        if ready.restore is not None:
            self.proposals.on_restored(ready.restore.index)
            self.applier.restore(ready.restore)
        if ready.apply:
            self.proposals.on_committed(ready.apply)
            self.applier.apply(ready.apply, may_wait=not self.node.leading)
        for read in ready.read_states:
            self.reads.on_read_state(read)
        for to in ready.snapshots:
            self.snapshot_sender.request(to)
        if ready.soft_state is not None:
            self._set_role(ready.soft_state)
        if self.node.conf_index != self._conf_index:
            self._update_routes()
            self.notify_change()
        if self.node.committed_in_term and self._settled_term != self.node.term:
            # The agent may report a leader only from here on, which on a slow disk is long after the election.
            self._settled_term = self.node.term
            self.notify_change()

    def _append(self, batch: AppendBatch) -> None:
        self.busy = True
        record = AppendRecord(self.group, self.id[1], self.generation, batch.snapshot, batch.entries, batch.hard_state)
        self._context.writer.submit(record, partial(self._on_persisted, batch))

    def _on_persisted(self, batch: AppendBatch) -> None:
        if self.stopped:
            return
        try:
            more = self.node.on_persisted(batch.token)
        except Exception as error:
            self._fail(error)
            return
        for message in batch.responses:
            self._send(message)
        if more:
            self._enqueue()

    def _send(self, message: Message) -> None:
        if isinstance(message, InstallSnapshot):
            self.snapshot_sender.on_install_message(message)
            return
        store = self._routes.get(message.receiver)
        if store is not None:
            self._context.peers.send(store, message)

    def _update_routes(self) -> None:
        self._conf_index = self.node.conf_index
        conf = self.node.conf
        self._routes.update({number: store_of(conf, number) for number in conf.members()})
        self._cancel_needless_snapshots()

    def _cancel_needless_snapshots(self) -> None:
        """Send snapshots only to the members if this replica leads, and only to the leader otherwise."""
        node = self.node
        self.snapshot_sender.cancel_except(set(node.conf.members()) if node.leading else {node.leader})

    def age(self) -> float:
        """Return the seconds since the replica was created or the process started."""
        return self._context.clock.now() - self._started_at

    @property
    def settings(self) -> HostSettings:
        """The settings of the host."""
        return self._context.settings

    def store_of(self, number: int) -> str | None:
        """Return the store of a member, if it is known."""
        return self._routes.get(number)

    def _fail(self, error: Exception) -> None:
        """Stop permanently and keep the data: continuing could lose acknowledged entries."""
        expected = isinstance(error, InvariantError | LogError)
        self.failure = str(error) if expected else repr(error)
        if not isinstance(error, LogFailedError):  # the host logs that one and ends the process
            log.error(
                "replica stopped: %s; its data is kept",
                self.failure,
                exc_info=None if expected else error,
                extra=self.partition.fields(),
            )
        self.stop()
        self.notify_change()

    def stop(self) -> None:
        """Stop taking part in the group."""
        if self.stopped:
            return
        self.stopped = True
        self.proposals.give_up()
        self.reads.give_up()
        self.snapshot_sender.cancel_except(set())
        self.applier.close()

    # Messages and time

    def step(self, store: str, message: Message) -> None:
        """Process a message from a peer."""
        if self.stopped:
            return
        if self.compaction.backlog_full and type(message) is Append:
            self._context.counters.refused_messages["backlog"] += 1
            return
        if self._routes.get(message.sender) != store:
            self._routes[message.sender] = store
        try:
            refusal = self.node.step(message)
        except Exception as error:
            self._fail(error)
            return
        if refusal is not None:
            self._context.counters.refused_messages[refusal.name.lower()] += 1
        if type(message) in _HEARTBEATS and not self.asleep:
            self._send_or_enqueue()
        else:
            self._enqueue()

    def _send_or_enqueue(self) -> None:
        """Send messages directly if nothing else is ready: a turn of the queue costs several times a heartbeat."""
        messages = self.node.ready_messages()
        if messages is None:
            self._enqueue()
            return
        for message in messages:
            self._send(message)

    def tick(self) -> None:
        """Run the timers that are due."""
        if self.stopped:
            return
        node = self.node
        if node.needs_restore:
            node.set_receiving(self._context.peers.receiving(self.group, node.replica, term=node.term))
        try:
            more = node.run_due()
        except Exception as error:
            self._fail(error)
            return
        if more:
            self._send_or_enqueue()

    def wake(self) -> None:
        """Resume ticking after sleep."""
        self.node.wake()
        self._enqueue()

    # Leadership

    @property
    def fit_to_lead(self) -> bool:
        """Whether the local state machine has the state and makes progress."""
        applier = self.applier
        return applier.attached and not applier.failing and not self.unresponsive and not self.node.lacks_state

    def set_unresponsive(self, unresponsive: bool) -> None:
        """Record whether the state machine answers."""
        if unresponsive != self.unresponsive:
            self.unresponsive, self.last_report = unresponsive, None
            self.notify_change()

    def _set_role(self, soft_state: SoftState) -> None:
        previous, self._role = self._role, soft_state
        if previous.role == LEADER and soft_state.role != LEADER:
            self.proposals.give_up()
        self._cancel_needless_snapshots()
        if soft_state.role == LEADER and previous.role != LEADER:
            self._context.counters.elections_won += 1
        self._publish_role()
        self.notify_change()

    def _publish_role(self) -> None:
        """Report the leader to the state machine."""
        role = self._role
        hint = self._routes.get(role.leader, "")
        self.applier.publish_role(leader=role.role == LEADER, term=role.term, hint=hint)

    def _on_attachment_change(self) -> None:
        if self.applier.attached and not self.stopped:
            self._publish_role()
        self.notify_change()
        self._enqueue()

    def transfer_to(self, to: ReplicaId) -> bool:
        """Hand leadership over to a replica by its id; return whether the transfer started."""
        return not self.stopped and self.node.leading and self.transfer(member(to))

    def hand_over(self) -> bool:
        """Hand leadership over to the fittest other voter; return whether one takes over or already leads."""
        if not self.node.leading or self.node.status().transfer_to:
            return True
        candidates = self._successors()
        # A random one: two replicas that are equally unfit would otherwise pass leadership back and forth for ever.
        return bool(candidates) and self.transfer(self._context.rng.choice(candidates))

    def _successors(self) -> list[int]:
        """Return the voters that leadership may go to: those that have caught up, or else the most advanced one."""
        status, settings = self.node.status(), self._context.settings
        fit = {
            number: peer
            for number, peer in status.peers.items()
            if status.conf.is_voter(number)
            and is_answering(peer, settings.raft.election_ticks)
            and not peer.snapshot_wanted
            and (not status.conf.joint or number in status.conf.voters)
        }
        caught_up = [number for number, peer in fit.items() if has_caught_up(peer, settings.caught_up_bytes)]
        if caught_up or not fit:
            return caught_up
        repairable = self.applier.attached and self.node.lacks_state
        if repairable and any(not peer.stateless for peer in status.peers.values()):
            return []  # a member with a state sends it here, and the other voters have no state either
        return [max(fit, key=lambda number: fit[number].match)]

    def transfer(self, to: int) -> bool:
        """Hand leadership over to a member; return whether the transfer started."""
        try:
            self.node.transfer(to)
        except RefusedError:
            return False
        self._context.counters.handed_over += 1
        self._enqueue()
        return True
