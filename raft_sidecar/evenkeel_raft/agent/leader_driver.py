"""What the leader of a partition does, driven by the protocol's own decisions (`evenkeel.protocol.leader_decision`).

    read      a new leader begins with a linearizable read of the keys at one revision
    report    who leads
    hand over if it is ordered
    act       the protocol's next action: a transaction, a proposal to raft, or a transfer

One transaction of a partition is on its way at a time. After one that succeeded, nothing more is done until the watch
has shown it; one that was refused brings the keys along as they are now; after one whose outcome is unknown the leader
begins anew with a read, and puts its lock anew.
"""

from __future__ import annotations

import logging

from msgspec.structs import replace

from evenkeel.errors import UnreachableError
from evenkeel.metastore.metastore_api import Get, OpResult, TxnResult
from evenkeel.protocol.leader_decision import GroupView, Propose, Transfer, Write
from evenkeel_raft.agent.agent_context import Context
from evenkeel_raft.agent.agent_queue import Pool
from evenkeel_raft.agent.leader_records import LeaderReports
from evenkeel_raft.agent.leadership_transfers import Transfers
from evenkeel_raft.agent.ordered_transfers import Orders
from evenkeel_raft.agent.partition_reader import Reader
from evenkeel_raft.agent.partition_retries import Attempts
from evenkeel_raft.agent.table_states import Tables
from evenkeel_raft.agent.tracked_partitions import Seat, Seats

__all__ = ["Leading"]

log = logging.getLogger(__name__)


class Leading:
    """The leader's part of the agent, for all partitions led here."""

    def __init__(
        self,
        context: Context,
        *,
        seats: Seats,
        tables: Tables,
        reader: Reader,
        pool: Pool,
        attempts: Attempts,
        transfers: Transfers,
        reports: LeaderReports,
        orders: Orders,
    ) -> None:
        self._context = context
        self._seats = seats
        self._tables = tables
        self._reader = reader
        self._pool = pool
        self._attempts = attempts
        self._transfers = transfers
        self._reports = reports
        self._orders = orders

    def step(self, seat: Seat, group: GroupView) -> None:
        """Do the next thing, if there is one."""
        self._stay_awake(seat, group)
        if seat.agent.reads_first(group.term):
            self._reader.want(seat.partition)
            return
        if seat.agent.read_term != group.term:
            return
        if group.committed_in_term:
            self._reports.step(seat, group.term)
        if not self._orders.step(seat, group):
            self._act(seat, group)

    def follow(self, seat: Seat) -> None:
        """The partition is not led here, or no longer."""
        self._reports.withdraw(seat)
        self._set_awake(seat, False)
        self._attempts.succeeded(seat.partition)

    def _act(self, seat: Seat, group: GroupView) -> None:
        self._note_target(seat)
        if not self._attempts.due(seat.partition):
            return
        match seat.agent.lead(group):
            case Write() as write:
                self._send(seat, write)
            case Propose() as propose:
                self._propose(seat, propose)
            case Transfer(to):
                peer = next(peer for peer in group.applied.peers if peer.id == to)
                self._transfers.begin(seat.partition, peer, why="change")

    def _note_target(self, seat: Seat) -> None:
        """Begin at once where the target is another one.

        The waits after failures were for the target before. Until the new one is acted on, replicas that it does not
        have are still being filled.
        """
        view = seat.agent.view
        target = (0, 0) if view is None else (view.pending_mod, view.planned_mod)
        if target != seat.target:
            seat.target = target
            self._attempts.succeeded(seat.partition)

    def _send(self, seat: Seat, write: Write) -> None:
        if self._pool.room(seat.partition):
            seat.agent.sent(write)
            self._pool.run(seat.partition, lambda: self._run(seat, write))

    async def _run(self, seat: Seat, write: Write) -> None:
        table, trigger = Get(self._context.keys.table(seat.partition.table)), Get(seat.keys.trigger)
        txn = replace(write.txn, success=(*write.txn.success, trigger), failure=(*write.txn.failure, table))
        outcome = "unknown"
        try:
            result = await self._context.metastore.txn(txn)
            outcome = "done" if result.succeeded else "refused"
        except UnreachableError as error:
            self._attempts.put_off(seat.partition, f"{write.what}: {error}")
        finally:
            self._context.counters.transactions[write.what, outcome] += 1
            if outcome == "unknown":
                seat.agent.gave_up()
        if outcome != "unknown":
            self._answered(seat, write.what, result)

    def _answered(self, seat: Seat, what: str, result: TxnResult) -> None:
        seat.agent.answered(result, revision=result.revision)
        if not result.succeeded:
            found = {kv.key: kv for op in result.results for kv in op.kvs}
            seat.read(found, at=result.revision)
            table = seat.partition.table
            self._tables.read(table, found.get(self._context.keys.table(table)), at=result.revision)
            self._attempts.put_off(seat.partition, f"{what} was refused: somebody else is at work")
            return
        self._seats.expect(result.revision)
        [*_, trigger] = result.results
        seat.plan = _plan(trigger)
        log.info("%s is written", what, extra=seat.partition.fields(plan=seat.plan))
        if what != "lock":
            seat.plan = 0
        if what == "unlock":
            # Locked in vain: if the target comes and goes, so would locks without a pause.
            self._context.counters.failures["change"] += 1
            self._attempts.put_off(seat.partition, "the target's voters do not answer when they are needed")
        elif what != "lock":
            self._attempts.succeeded(seat.partition)

    def _propose(self, seat: Seat, propose: Propose) -> None:
        if self._context.groups.propose(seat.partition, propose.configuration):
            seat.agent.proposed(propose)
            self._context.counters.proposals[propose.what] += 1
            plan = seat.plan or _newest(seat)
            log.info("a configuration is proposed: %s", propose.what, extra=seat.partition.fields(plan=plan))
            self._attempts.succeeded(seat.partition)
        else:
            self._context.counters.failures["propose"] += 1
            self._attempts.put_off(seat.partition, f"raft does not take a configuration ({propose.what}) now")

    def _stay_awake(self, seat: Seat, group: GroupView) -> None:
        view = seat.agent.view
        asked = view is not None and (view.pending is not None or view.lock is not None or view.stable is None)
        self._set_awake(seat, asked or group.applied.joint or bool(group.applied.staged))

    def _set_awake(self, seat: Seat, awake: bool) -> None:
        if seat.awake != awake:
            seat.awake = awake
            self._context.groups.keep_awake(seat.partition, awake)


def _plan(trigger: OpResult) -> int:
    """The number of the plan that a partition was last changed for, as its key has it."""
    numbers = [kv.value for kv in trigger.kvs if kv.value.isdigit()]
    return int(numbers[0]) if numbers else 0


def _newest(seat: Seat) -> int:
    """The number of the plan that added the newest of the pending replicas: before the lock it is their turn."""
    view = seat.agent.view
    pending = view.pending.peers() if view is not None and view.pending is not None else ()
    return max((peer.replica for peer in pending), default=0)
