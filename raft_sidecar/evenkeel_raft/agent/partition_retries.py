"""What did not work and is tried again: later and later, never given up, and not in silence.

A partition that fails again and again must neither keep the metastore and raft busy nor be forgotten. So the waits
double up to a limit, with jitter, and past a number of failures in a row the partition has a problem that reports and
status name.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import msgspec

from evenkeel.runtime.backoff import Rng
from evenkeel.runtime.clock import Clock
from evenkeel_raft.agent.agent_queue import Work
from evenkeel_raft.agent.agent_settings import Tuning
from evenkeel_raft.shared.raft_groups import Partition

__all__ = ["Attempts"]

log = logging.getLogger(__name__)


class _Attempt(msgspec.Struct):
    failures: int = 0
    not_before: float = 0.0
    why: str = ""


class Attempts:
    """Per partition: how often in a row something had to be put off, why, and until when."""

    def __init__(self, work: Work, *, clock: Clock, rng: Rng, tuning: Tuning) -> None:
        self._work = work
        self._clock = clock
        self._rng = rng
        self._tuning = tuning
        self._attempts: dict[Partition, _Attempt] = {}

    def due(self, partition: Partition) -> bool:
        """Whether the next attempt may be made now; if not, the partition will be looked at when it may."""
        attempt = self._attempts.get(partition)
        return attempt is None or self._clock.now() >= attempt.not_before

    def put_off(self, partition: Partition, why: str) -> None:
        """It did not work, or nobody can tell yet: try again after a while."""
        attempt = self._attempts.setdefault(partition, _Attempt())
        settings = self._tuning.now
        wait = min(settings.retry_seconds * 2 ** min(attempt.failures, 30), settings.longest_retry_seconds)
        attempt.failures += 1
        attempt.why = why
        attempt.not_before = self._clock.now() + wait * self._rng.uniform(0.5, 1.0)
        if attempt.failures == settings.degraded_after:
            log.warning("%s; tried %d times", why, attempt.failures, extra=partition.fields())
        self._work.stir_at(partition, attempt.not_before)

    def succeeded(self, partition: Partition) -> None:
        """It worked, or is no longer asked for."""
        self._attempts.pop(partition, None)

    def problems(self) -> Iterator[tuple[Partition, str]]:
        """Partitions that have failed too often in a row, and why."""
        for partition, attempt in self._attempts.items():
            if attempt.failures >= self._tuning.now.degraded_after:
                yield partition, f"{attempt.why} (tried {attempt.failures} times)"
