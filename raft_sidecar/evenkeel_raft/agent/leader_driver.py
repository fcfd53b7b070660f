"""Drives the leader of a partition by the protocol's decisions (`evenkeel.protocol.leader_decision`).

    read       a new leader first reads the keys linearizably at one revision
    publish    write the leader record
    hand over  if the operator has ordered it
    act        the protocol's next action: a transaction, a proposal to raft, or a transfer

A partition has at most one transaction in flight. After a successful one, the leader waits until the watch has shown
it. A rejected one returns the current keys. After one with an unknown outcome, the leader reads the keys and writes
its lock again.
"""

from __future__ import annotations

import logging

from msgspec.structs import replace

from evenkeel.errors import UnreachableError
from evenkeel.metastore.metastore_api import Get, OpResult, TxnResult
from evenkeel.protocol.leader_decision import GroupView, Propose, Transfer, Write
from evenkeel_raft.agent.agent_context import AgentContext
from evenkeel_raft.agent.leader_records import LeaderRecords
from evenkeel_raft.agent.leadership_transfers import LeadershipTransfers
from evenkeel_raft.agent.ordered_transfers import OrderedTransfers
from evenkeel_raft.agent.partition_jobs import PartitionJobs
from evenkeel_raft.agent.partition_reader import PartitionReader
from evenkeel_raft.agent.partition_retries import PartitionRetries
from evenkeel_raft.agent.table_states import TableStates
from evenkeel_raft.agent.tracked_partitions import TrackedPartition, TrackedPartitions

__all__ = ["LeaderDriver"]

log = logging.getLogger(__name__)


class LeaderDriver:
    """The leader's part of the agent, for all partitions led by this store."""

    def __init__(
        self,
        context: AgentContext,
        *,
        partitions: TrackedPartitions,
        tables: TableStates,
        reader: PartitionReader,
        jobs: PartitionJobs,
        retries: PartitionRetries,
        transfers: LeadershipTransfers,
        records: LeaderRecords,
        orders: OrderedTransfers,
    ) -> None:
        self._context = context
        self._partitions = partitions
        self._tables = tables
        self._reader = reader
        self._jobs = jobs
        self._retries = retries
        self._transfers = transfers
        self._records = records
        self._orders = orders

    def reconcile(self, tracked: TrackedPartition, group: GroupView) -> None:
        """Take the leader's next action, if there is one."""
        self._stay_awake(tracked, group)
        if tracked.agent.reads_first(group.term):
            self._reader.request(tracked.partition)
            return
        if tracked.agent.read_term != group.term:
            return
        if group.committed_in_term:
            self._records.publish(tracked, group.term)
        if not self._orders.reconcile(tracked, group):
            self._act(tracked, group)

    def not_leading(self, tracked: TrackedPartition) -> None:
        """Clean up for a partition that this store does not lead."""
        self._records.withdraw(tracked)
        self._set_awake(tracked, False)
        self._retries.succeeded(tracked.partition)

    def _act(self, tracked: TrackedPartition, group: GroupView) -> None:
        self._note_target(tracked)
        if not self._retries.due(tracked.partition):
            return
        match tracked.agent.lead(group):
            case Write() as write:
                self._send(tracked, write)
            case Propose() as propose:
                self._propose(tracked, propose)
            case Transfer(to):
                peer = next(peer for peer in group.applied.peers if peer.id == to)
                self._transfers.begin(tracked.partition, peer, why="change")

    def _note_target(self, tracked: TrackedPartition) -> None:
        """Drop the backoff if the target has changed, so that the new target starts at once.

        Until the leader acts on the new target, it keeps sending snapshots to replicas that are not part of it.
        """
        view = tracked.agent.view
        target = (0, 0) if view is None else (view.pending_mod, view.planned_mod)
        if target != tracked.target:
            tracked.target = target
            self._retries.succeeded(tracked.partition)

    def _send(self, tracked: TrackedPartition, write: Write) -> None:
        if self._jobs.has_slot(tracked.partition):
            tracked.agent.sent(write)
            self._jobs.run(tracked.partition, lambda: self._run(tracked, write))

    async def _run(self, tracked: TrackedPartition, write: Write) -> None:
        table, trigger = Get(self._context.keys.table(tracked.partition.table)), Get(tracked.keys.trigger)
        txn = replace(write.txn, success=(*write.txn.success, trigger), failure=(*write.txn.failure, table))
        outcome = "unknown"
        try:
            result = await self._context.metastore.txn(txn)
            outcome = "done" if result.succeeded else "refused"
        except UnreachableError as error:
            self._retries.retry_later(tracked.partition, f"{write.what}: {error}")
        finally:
            self._context.counters.transactions[write.what, outcome] += 1
            if outcome == "unknown":
                tracked.agent.outcome_unknown()
        if outcome != "unknown":
            self._answered(tracked, write.what, result)

    def _answered(self, tracked: TrackedPartition, what: str, result: TxnResult) -> None:
        tracked.agent.answered(result, revision=result.revision)
        if not result.succeeded:
            found = {kv.key: kv for op in result.results for kv in op.kvs}
            tracked.read(found, at=result.revision)
            table = tracked.partition.table
            self._tables.read(table, found.get(self._context.keys.table(table)), at=result.revision)
            self._retries.retry_later(tracked.partition, f"{what} was rejected: the keys changed first")
            return
        self._partitions.expect(result.revision)
        [*_, trigger] = result.results
        tracked.plan = _plan(trigger)
        log.info("wrote %s", what, extra=tracked.partition.fields(plan=tracked.plan))
        if what != "lock":
            tracked.plan = 0
        if what == "unlock":
            # Without a pause, a target whose stores come and go would be locked and unlocked in a tight loop.
            self._context.counters.failures["change"] += 1
            self._retries.retry_later(tracked.partition, "change rolled back: voters of the target did not respond")
        elif what != "lock":
            self._retries.succeeded(tracked.partition)

    def _propose(self, tracked: TrackedPartition, propose: Propose) -> None:
        if self._context.groups.propose(tracked.partition, propose.configuration):
            tracked.agent.proposed(propose)
            self._context.counters.proposals[propose.what] += 1
            plan = tracked.plan or _newest(tracked)
            log.info("proposed a configuration: %s", propose.what, extra=tracked.partition.fields(plan=plan))
            self._retries.succeeded(tracked.partition)
        else:
            self._context.counters.failures["propose"] += 1
            self._retries.retry_later(tracked.partition, f"raft rejected a configuration proposal ({propose.what})")

    def _stay_awake(self, tracked: TrackedPartition, group: GroupView) -> None:
        view = tracked.agent.view
        asked = view is not None and (view.pending is not None or view.lock is not None or view.stable is None)
        self._set_awake(tracked, asked or group.applied.joint or bool(group.applied.staged))

    def _set_awake(self, tracked: TrackedPartition, awake: bool) -> None:
        if tracked.awake != awake:
            tracked.awake = awake
            self._context.groups.keep_awake(tracked.partition, awake)


def _plan(trigger: OpResult) -> int:
    """Return the number of the plan that the partition was last changed for, from its trigger key."""
    numbers = [kv.value for kv in trigger.kvs if kv.value.isdigit()]
    return int(numbers[0]) if numbers else 0


def _newest(tracked: TrackedPartition) -> int:
    """Return the number of the plan that added the newest pending replica; used before the lock names a plan."""
    view = tracked.agent.view
    pending = view.pending.peers() if view is not None and view.pending is not None else ()
    return max((peer.replica for peer in pending), default=0)
