"""Who leads: `leaders/<t>/<p>`, written by each new leader, and replaced by a higher term only.

Clients and the operator find leaders by it. It is a report and nothing more: nobody decides anything by it, so an
old leader's late report must only not undo a newer one's, which comparing the key as it was read sees to.
"""

from __future__ import annotations

from evenkeel.errors import MalformedRecordError
from evenkeel.metastore.api import KeyValue, Put
from evenkeel.protocol.records import Leader, decode, encode
from evenkeel_raft.agent.context import Context
from evenkeel_raft.agent.seats import Seat
from evenkeel_raft.agent.writes import WriteOne, Writes

__all__ = ["LeaderReports"]


class LeaderReports:
    """Reports of the partitions led here."""

    def __init__(self, context: Context, writes: Writes) -> None:
        self._context = context
        self._writes = writes

    def step(self, seat: Seat, term: int) -> None:
        """Report that this store leads in `term`, if that is not known yet."""
        if seat.reported >= term:
            return
        if _term(seat.leader) >= term:
            seat.reported = term
            return
        keys, me = self._context.keys, self._context.me.store
        write = WriteOne(
            what="leader",
            op=Put(keys.leader(*seat.partition), encode(Leader(me, term))),
            mod_revision=0 if seat.leader is None else seat.leader.mod_revision,
            table=keys.table(seat.partition.table),
            done=lambda revision: self._done(seat, term, revision),
            lost=lambda kv: self._lost(seat, kv),
        )
        self._writes.add(write)

    def _done(self, seat: Seat, term: int, revision: int) -> None:
        key, value = self._context.keys.leader(*seat.partition), encode(Leader(self._context.me.store, term))
        seat.leader = KeyValue(key, value, revision, revision, 1)
        seat.reported = term
        self._context.work.stir(seat.partition)

    def _lost(self, seat: Seat, kv: KeyValue | None) -> None:
        seat.leader = kv
        self._context.work.stir(seat.partition)


def _term(kv: KeyValue | None) -> int:
    """The term that stands there; what cannot be read is replaced by any."""
    try:
        return 0 if kv is None else decode(Leader, kv.value, key=kv.key).term
    except MalformedRecordError:
        return 0
