"""Leader records, `leaders/<t>/<p>`: each new leader writes one, and only a higher term replaces it.

Clients and the operator use the records to find leaders. Correctness does not depend on them: a late write of an old
leader must only not undo a newer one, which the compare on the key's revision ensures.

A store withdraws its record when no replica has led the partition for `withdraw_seconds`, or when its own replica leads
but cannot serve. While another replica leads, the record stays until that leader replaces it: a transfer needs no
second write, and clients that use the old record are redirected. A leader that cannot serve does not write a record;
it withdraws all records of earlier terms.
"""

from __future__ import annotations

import logging
from typing import Final

from evenkeel.errors import MalformedRecordError
from evenkeel.metastore.metastore_api import Delete, KeyValue, Put
from evenkeel.protocol.records import Leader, decode, encode
from evenkeel_raft.agent.agent_context import AgentContext
from evenkeel_raft.agent.partition_reader import PartitionReader
from evenkeel_raft.agent.tracked_partitions import TrackedPartition
from evenkeel_raft.agent.write_batcher import KeyWrite, WriteBatcher

__all__ = ["LeaderRecords"]

log = logging.getLogger(__name__)

_UNFIT_SECONDS: Final = 0.5
"""How long a leader that cannot serve waits before it withdraws records of earlier terms.

Such a leader tries to hand over every second, so where no voter can serve, each leads for about that long.
"""


class LeaderRecords:
    """Publishes and withdraws the records of partitions led by this store."""

    def __init__(self, context: AgentContext, *, writes: WriteBatcher, reader: PartitionReader) -> None:
        self._context = context
        self._writes = writes
        self._reader = reader

    def publish(self, tracked: TrackedPartition, term: int) -> None:
        """Write that this store leads in `term`, unless the record says so already."""
        tracked.unled_since = None
        if tracked.reported >= term:
            return
        if _term(tracked.leader) >= term:
            tracked.reported = term
            return
        keys, me = self._context.keys, self._context.me.store
        write = KeyWrite(
            what="leader",
            op=Put(keys.leader(*tracked.partition), encode(Leader(me, term))),
            mod_revision=0 if tracked.leader is None else tracked.leader.mod_revision,
            table=keys.table(tracked.partition.table),
            on_written=lambda revision: self._done(tracked, term, revision),
            on_conflict=lambda kv: self._lost(tracked, kv),
        )
        self._writes.add(write)

    def withdraw(self, tracked: TrackedPartition) -> None:
        """Delete this store's record if no replica has served the partition as its leader for `withdraw_seconds`.

        If this process has not written a record, it reads the key once: the previous process may have written one.
        """
        context, now = self._context, self._context.clock.now()
        if context.groups.led_elsewhere(tracked.partition):
            tracked.unled_since = None
            return
        if tracked.unled_since is None:
            tracked.unled_since, tracked.leader_read = now, False
        unfit = self._has_passed(tracked, tracked.unled_since + _UNFIT_SECONDS)
        overdue = self._has_passed(tracked, tracked.unled_since + context.settings.withdraw_seconds)
        self._withdraw(tracked, unfit=unfit, overdue=overdue)

    def _has_passed(self, tracked: TrackedPartition, deadline: float) -> bool:
        """Whether the deadline has passed; if not, the partition is reconciled when it has."""
        now = self._context.clock.now()
        if now < deadline:
            self._context.queue.add(tracked.partition, after=deadline - now)
        return now >= deadline

    def _withdraw(self, tracked: TrackedPartition, *, unfit: bool, overdue: bool) -> None:
        """Delete a wrong record.

        `unfit` and `overdue` say whether the partition was unserved for `_UNFIT_SECONDS` and `withdraw_seconds`.
        """
        unfit_term = self._context.groups.leading_term(tracked.partition)
        own, stale = _store(tracked.leader) == self._context.me.store, _term(tracked.leader) < unfit_term
        if tracked.leader is not None and ((own and overdue) or (stale and unfit)):
            self._delete(tracked)
        elif not tracked.leader_read and (overdue or (unfit_term and unfit)):
            self._reader.request(tracked.partition)

    def _delete(self, tracked: TrackedPartition) -> None:
        assert tracked.leader is not None
        write = KeyWrite(
            what="withdraw",
            op=Delete(tracked.leader.key),
            mod_revision=tracked.leader.mod_revision,
            table=self._context.keys.table(tracked.partition.table),
            on_written=lambda _: self._withdrawn(tracked),
            on_conflict=lambda kv: self._lost(tracked, kv),
        )
        self._writes.add(write)

    def _withdrawn(self, tracked: TrackedPartition) -> None:
        tracked.leader, tracked.reported = None, 0
        log.warning("withdrew the leader record: no replica serves the partition", extra=tracked.partition.fields())
        self._context.queue.add(tracked.partition)

    def _done(self, tracked: TrackedPartition, term: int, revision: int) -> None:
        key, value = self._context.keys.leader(*tracked.partition), encode(Leader(self._context.me.store, term))
        tracked.leader = KeyValue(key, value, revision, revision, 1)
        tracked.reported = term
        self._context.queue.add(tracked.partition)

    def _lost(self, tracked: TrackedPartition, kv: KeyValue | None) -> None:
        tracked.leader = kv
        self._context.queue.add(tracked.partition)


def _term(kv: KeyValue | None) -> int:
    """Return the term of the record; 0 if it is absent or malformed, so that any term replaces it."""
    leader = _leader(kv)
    return 0 if leader is None else leader.term


def _store(kv: KeyValue | None) -> str:
    """Return the store of the record; empty if it is absent or malformed."""
    leader = _leader(kv)
    return "" if leader is None else leader.store


def _leader(kv: KeyValue | None) -> Leader | None:
    try:
        return None if kv is None else decode(Leader, kv.value, key=kv.key)
    except MalformedRecordError:
        return None
