"""Apply a plan to all partitions of a table, in batched transactions.

A transaction compares each partition's five keys as they were read. For each kind of key, one range comparison over
neighbouring partitions checks that no key was written since the read. A range comparison does not notice a deleted
key, so existing pending, planned and lock keys are also compared one by one. So 64 partitions fit etcd's limit of
128 comparisons and operations.

If a comparison fails, the batch's keys are read again. Partitions that changed are decided again, in batches of half
the size; the others are retried unchanged. Retries compare key by key: a range also covers partitions that are not in
the batch, and it might never hold while leaders change those. A changed epoch or head ends the run: another operator
or a newer plan has taken over.

Sans-IO: call `next_batch()` until it returns None, run the transactions concurrently, pass each result to
`on_result()`.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping

import msgspec

from evenkeel.errors import FencedError
from evenkeel.metastore.metastore_api import MAX_TXN_OPS, Compare, Get, KeyValue, Op, Txn, TxnResult
from evenkeel.protocol.keys import Keys, PartitionKeys
from evenkeel.protocol.operator_decision import Case, Decision, retarget
from evenkeel.protocol.partition_view import PartitionView, read_partition
from evenkeel.protocol.records import Peer, Retarget, TargetPeer

__all__ = ["Batch", "PlanRun"]

_REREAD = (MAX_TXN_OPS - 2) // 5
"""Partitions whose five keys one transaction reads again, together with the epoch and the head."""
_SHARED = 7
"""Comparisons shared by all partitions of a batch: epoch, head, and one range for each kind of key."""


class Batch(msgspec.Struct, frozen=True):
    """One transaction of the run and its partitions; without cases it only reads their keys again."""

    partitions: tuple[int, ...]
    cases: tuple[Case, ...]
    txn: Txn


class _Group(msgspec.Struct, frozen=True):
    """Partitions in ascending order whose keys were read at the same revision."""

    partitions: tuple[int, ...]
    revision: int
    exact: bool = False
    """Whether each key is compared individually."""


class PlanRun:
    """Applies plan number `plan` to the partitions of one table."""

    def __init__(
        self,
        *,
        keys: Keys,
        table: str,
        plan: int,
        target: Callable[[int], tuple[TargetPeer, ...]],
        mode: Retarget,
        epoch: Compare,
        head_mod: int,
        gone: Callable[[Peer], bool] = lambda _: False,
    ) -> None:
        self._keys = keys
        self._table = table
        self._plan = plan
        self._target = target
        self._mode = mode
        self._gone = gone
        self._guards = (epoch, Compare(keys.plan_head(table), "mod", "=", head_mod))
        self._views: dict[int, PartitionView] = {}
        self._queue: deque[_Group] = deque()
        self._unsure: deque[tuple[int, ...]] = deque()
        self._running = 0
        self.cases: Counter[Case] = Counter()
        """Number of partitions by case."""
        self.retried = 0
        """Number of partitions decided again because their keys had changed."""
        self.superseded = False
        """Whether a newer plan exists; this plan is then no longer applied."""

    def admit(self, views: Mapping[int, PartitionView], *, revision: int) -> None:
        """Add partitions that may be written now, with their keys as read at `revision`."""
        self._views.update(views)
        self._enqueue(sorted(views), revision=revision)

    @property
    def done(self) -> bool:
        """Whether all admitted partitions are handled, or a newer plan has taken over."""
        return not self._running and (self.superseded or not (self._queue or self._unsure))

    def next_batch(self) -> Batch | None:
        """Return the next transaction to run, or None if none can start now."""
        if self._unsure and not self.superseded:
            return self._start(self._reread(self._unsure.popleft()))
        while self._queue and not self.superseded:
            batch = self._batch(self._queue.popleft())
            if batch is not None:
                return self._start(batch)
        return None

    def on_result(self, batch: Batch, result: TxnResult) -> None:
        """Record a finished transaction and queue its retry if it failed."""
        self._running -= 1
        if batch.cases and result.succeeded:
            self.cases.update(batch.cases)
            return
        found = {kv.key: kv for op in result.results for kv in op.kvs}
        self._check_guards(found)
        if not batch.cases:
            self._retry(batch, found, revision=result.revision)
            return
        lost = batch.partitions
        self._unsure.extend(lost[at : at + _REREAD] for at in range(0, len(lost), _REREAD))

    def _start(self, batch: Batch) -> Batch:
        self._running += 1
        return batch

    def _batch(self, group: _Group) -> Batch | None:
        """Return a batch of as many partitions as fit one transaction; put the rest back into the queue."""
        decided: list[int] = []
        cases: list[Case] = []
        compares: list[Compare] = []
        ops: list[Op] = []
        for at, partition in enumerate(group.partitions):
            keys, view = self._partition_keys(partition), self._views[partition]
            decision = self._decide(partition, keys, view)
            if not decision.ops:
                self.cases[decision.case] += 1
                continue
            own = view.compares(keys) if group.exact else view.deletable_compares(keys)
            if len(compares) + len(own) > MAX_TXN_OPS - _SHARED or len(ops) + len(decision.ops) > MAX_TXN_OPS:
                self._queue.appendleft(msgspec.structs.replace(group, partitions=group.partitions[at:]))
                break
            decided.append(partition)
            cases.append(decision.case)
            compares += own
            ops += decision.ops
        if not decided:
            return None
        shared = self._guards if group.exact else (*self._guards, *self._untouched(decided, group.revision))
        return Batch(tuple(decided), tuple(cases), Txn((*shared, *compares), tuple(ops), self._read_guards()))

    def _untouched(self, decided: list[int], revision: int) -> list[Compare]:
        """Compare that no key from the first to the last partition was written since the read."""
        first, last = self._partition_keys(decided[0]), self._partition_keys(decided[-1])
        return [
            Compare(since, "mod", "<", revision + 1, end=f"{until}\0")
            for since, until in zip(first.all(), last.all(), strict=True)
        ]

    def _reread(self, partitions: tuple[int, ...]) -> Batch:
        own = (Get(key) for partition in partitions for key in self._partition_keys(partition).all())
        return Batch(partitions, (), Txn(success=(*self._read_guards(), *own)))

    def _read_guards(self) -> tuple[Get, ...]:
        return tuple(Get(guard.key) for guard in self._guards)

    def _decide(self, partition: int, keys: PartitionKeys, view: PartitionView) -> Decision:
        return retarget(view, self._target(partition), keys=keys, plan=self._plan, mode=self._mode, gone=self._gone)

    def _check_guards(self, found: Mapping[str, KeyValue]) -> None:
        epoch, head = self._guards
        if _mod(found, epoch.key) != epoch.operand:
            raise FencedError(f"{epoch.key!r} has changed: another operator has taken over; this one stops writing")
        self.superseded = self.superseded or _mod(found, head.key) != head.operand

    def _retry(self, batch: Batch, found: Mapping[str, KeyValue], *, revision: int) -> None:
        changed: list[int] = []
        unchanged: list[int] = []
        for partition in batch.partitions:
            view = read_partition(self._partition_keys(partition), found)
            (changed if view.mods() != self._views[partition].mods() else unchanged).append(partition)
            self._views[partition] = view
        self.retried += len(changed)
        self._enqueue(unchanged, revision=revision, exact=True)
        self._enqueue(changed, revision=revision, exact=True, size=max(1, len(batch.partitions) // 2))

    def _enqueue(self, partitions: list[int], *, revision: int, exact: bool = False, size: int | None = None) -> None:
        size = size or max(1, len(partitions))
        for at in range(0, len(partitions), size):
            self._queue.append(_Group(tuple(partitions[at : at + size]), revision, exact))

    def _partition_keys(self, partition: int) -> PartitionKeys:
        return self._keys.partition(self._table, partition)


def _mod(found: Mapping[str, KeyValue], key: str) -> int:
    kv = found.get(key)
    return 0 if kv is None else kv.mod_revision
