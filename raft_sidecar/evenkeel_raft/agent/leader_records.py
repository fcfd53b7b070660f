"""Who leads: `leaders/<t>/<p>`, written by each new leader, and replaced by a higher term only.

Clients and the operator find leaders by it. It is a report and nothing more: nobody decides anything by it, so an
old leader's late report must only not undo a newer one's, which comparing the key as it was read sees to.

A store withdraws its report when no replica has led the partition for `withdraw_seconds`, or when its own replica leads
and cannot serve. While another replica leads, the report stays until that leader replaces it: a transfer costs no
second write, and clients that follow the old report are redirected. A leader that cannot serve replaces nothing, so it
withdraws every report of an earlier term instead.
"""

from __future__ import annotations

import logging
from typing import Final

from evenkeel.errors import MalformedRecordError
from evenkeel.metastore.metastore_api import Delete, KeyValue, Put
from evenkeel.protocol.records import Leader, decode, encode
from evenkeel_raft.agent.agent_context import Context
from evenkeel_raft.agent.partition_reader import Reader
from evenkeel_raft.agent.tracked_partitions import Seat
from evenkeel_raft.agent.write_batcher import WriteOne, Writes

__all__ = ["LeaderReports"]

log = logging.getLogger(__name__)

_UNFIT_SECONDS: Final = 0.5
"""How long a leader that cannot serve waits before it withdraws reports of earlier terms.

It tries to hand over every second. Where no voter can serve, each leads for no longer than that.
"""


class LeaderReports:
    """Reports of the partitions led here."""

    def __init__(self, context: Context, *, writes: Writes, reader: Reader) -> None:
        self._context = context
        self._writes = writes
        self._reader = reader

    def step(self, seat: Seat, term: int) -> None:
        """Report that this store leads in `term`, if that is not known yet."""
        seat.unled_since = None
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

    def withdraw(self, seat: Seat) -> None:
        """Delete this store's report if no replica has served the partition as its leader for `withdraw_seconds`.

        Where this process does not know of a report of its own it reads the key once: its predecessor may have
        written one.
        """
        context, now = self._context, self._context.clock.now()
        if context.groups.led_elsewhere(seat.partition):
            seat.unled_since = None
            return
        if seat.unled_since is None:
            seat.unled_since, seat.leader_read = now, False
            for patience in (_UNFIT_SECONDS, context.settings.withdraw_seconds):
                context.work.stir_at(seat.partition, now + patience)
        self._withdraw_after(seat, now - seat.unled_since)

    def _withdraw_after(self, seat: Seat, seconds: float) -> None:
        """Delete a report that is wrong after so many seconds in which no replica was known to serve."""
        context, unfit_term = self._context, self._context.groups.leading_term(seat.partition)
        overdue = seconds >= context.settings.withdraw_seconds
        own, stale = _store(seat.leader) == context.me.store, _term(seat.leader) < unfit_term
        if seat.leader is not None and ((own and overdue) or (stale and seconds >= _UNFIT_SECONDS)):
            self._delete(seat)
        elif not seat.leader_read and (overdue or (unfit_term and seconds >= _UNFIT_SECONDS)):
            self._reader.want(seat.partition)

    def _delete(self, seat: Seat) -> None:
        assert seat.leader is not None
        write = WriteOne(
            what="withdraw",
            op=Delete(seat.leader.key),
            mod_revision=seat.leader.mod_revision,
            table=self._context.keys.table(seat.partition.table),
            done=lambda _: self._withdrawn(seat),
            lost=lambda kv: self._lost(seat, kv),
        )
        self._writes.add(write)

    def _withdrawn(self, seat: Seat) -> None:
        seat.leader, seat.reported = None, 0
        log.warning("no replica serves the partition: its leader key is withdrawn", extra=seat.partition.fields())
        self._context.work.stir(seat.partition)

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
    leader = _leader(kv)
    return 0 if leader is None else leader.term


def _store(kv: KeyValue | None) -> str:
    """The store that the key names; empty where there is no readable key."""
    leader = _leader(kv)
    return "" if leader is None else leader.store


def _leader(kv: KeyValue | None) -> Leader | None:
    try:
        return None if kv is None else decode(Leader, kv.value, key=kv.key)
    except MalformedRecordError:
        return None
