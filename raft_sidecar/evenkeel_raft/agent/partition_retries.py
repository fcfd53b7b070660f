"""Retries with exponential backoff for each partition.

A partition that keeps failing must neither overload the metastore and raft nor be forgotten. The wait doubles up to a
limit, with jitter. After a number of consecutive failures, the partition has a problem that reports and status show.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import msgspec

from evenkeel.runtime.backoff import Rng
from evenkeel.runtime.clock import Clock
from evenkeel.runtime.work_queue import WorkQueue
from evenkeel_raft.agent.agent_settings import Tuning
from evenkeel_raft.shared.raft_groups import Partition

__all__ = ["PartitionRetries"]

log = logging.getLogger(__name__)


class _Retry(msgspec.Struct):
    failures: int = 0
    not_before: float = 0.0
    why: str = ""


class PartitionRetries:
    """Failures of each partition: how many in a row, the last reason, and when to retry."""

    def __init__(self, queue: WorkQueue[Partition], *, clock: Clock, rng: Rng, tuning: Tuning) -> None:
        self._queue = queue
        self._clock = clock
        self._rng = rng
        self._tuning = tuning
        self._retries: dict[Partition, _Retry] = {}

    def due(self, partition: Partition) -> bool:
        """Whether the next attempt may be made now; if not, the partition is reconciled when it may."""
        retry = self._retries.get(partition)
        if retry is None or self._clock.now() >= retry.not_before:
            return True
        self._enqueue(partition, retry)
        return False

    def retry_later(self, partition: Partition, why: str) -> None:
        """Record a failure or an unknown outcome, and retry after a backoff."""
        retry = self._retries.setdefault(partition, _Retry())
        settings = self._tuning.current
        wait = min(settings.retry_seconds * 2 ** min(retry.failures, 30), settings.longest_retry_seconds)
        retry.failures += 1
        retry.why = why
        retry.not_before = self._clock.now() + wait * self._rng.uniform(0.5, 1.0)
        if retry.failures == settings.degraded_after:
            log.warning("%s; failed %d times in a row", why, retry.failures, extra=partition.fields())
        self._enqueue(partition, retry)

    def _enqueue(self, partition: Partition, retry: _Retry) -> None:
        self._queue.add(partition, after=retry.not_before - self._clock.now())

    def succeeded(self, partition: Partition) -> None:
        """Forget the failures: the action succeeded or is no longer needed."""
        self._retries.pop(partition, None)

    def problems(self) -> Iterator[tuple[Partition, str]]:
        """Yield the partitions with too many consecutive failures, and why."""
        for partition, retry in self._retries.items():
            if retry.failures >= self._tuning.current.degraded_after:
                yield partition, f"{retry.why} (failed {retry.failures} times)"
