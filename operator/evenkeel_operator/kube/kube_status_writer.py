"""Writes statuses to the API server: the newest of each object, at most one per interval.

A status that was set can be read back at once, before it is written. So the next reconciliation builds on the last one,
and transition times do not jump.

CRDs of the first release enumerate the condition types, and the API server rejects a status with any other. Such a
status is written again without those conditions; otherwise an outdated Ready would stay.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from evenkeel.errors import KubernetesError
from evenkeel.kube.kube_client import Kube
from evenkeel.kube.object_kinds import Object, kind_of
from evenkeel.model.conditions import FIRST_TYPES
from evenkeel.runtime.clock import Clock, SystemClock
from evenkeel_operator.kube.object_cache import Cache

__all__ = ["KubeStatusWriter"]

log = logging.getLogger(__name__)

_INTERVAL: Final = 1.0
_RETRY: Final = 5.0
_CONCURRENCY: Final = 8
_INVALID: Final = 422
_NONE: Final[Object] = {}
"""The same object every time, so that identity shows that a missing status has not changed."""

OnWritten = Callable[[Object, Object], None]
"""Called after every status write with the object before and after."""


class _Pending(msgspec.Struct):
    subject: Object
    status: Object
    due: float


class KubeStatusWriter:
    """Holds pending statuses and writes them."""

    def __init__(
        self,
        kube: Kube,
        cache: Cache,
        *,
        on_written: OnWritten = lambda before, after: None,
        interval: float = _INTERVAL,
        clock: Clock | None = None,
    ) -> None:
        self._kube = kube
        self._cache = cache
        self._on_written = on_written
        self._interval = interval
        self._clock = clock or SystemClock()
        self._pending: dict[str, _Pending] = {}
        self._not_before: dict[str, float] = {}
        """By uid: when the next status may be written."""
        self._wake = asyncio.Event()
        self.written = 0
        """Number of statuses written so far."""
        self._warned = False
        """Whether the log has the warning that the CRDs reject conditions."""

    def of(self, subject: Object) -> Object:
        """Return the pending status of an object, or its current one."""
        pending = self._pending.get(subject["metadata"]["uid"])
        found: Object = pending.status if pending is not None else subject.get("status") or _NONE
        return found

    def set(self, subject: Object, status: Object) -> Object:
        """Enqueue a status to be written, and return it; `of` returns it from now on."""
        if (known := self.of(subject)) == status:
            return known
        uid = subject["metadata"]["uid"]
        self._pending[uid] = _Pending(subject, status, self._not_before.get(uid, self._clock.now()))
        self._wake.set()
        return status

    def __len__(self) -> int:
        return len(self._pending)

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            now = self._clock.now()
            self._not_before = {uid: when for uid, when in self._not_before.items() if when > now}
            due = [entry for entry in self._pending.values() if entry.due <= now]
            if not due:
                await self._wait(now)
                continue
            for first in range(0, len(due), _CONCURRENCY):
                await asyncio.gather(*map(self._write, due[first : first + _CONCURRENCY]))

    async def flush(self) -> None:
        """Write all pending statuses now."""
        await asyncio.gather(*map(self._write, list(self._pending.values())))

    async def _wait(self, now: float) -> None:
        self._wake.clear()
        if not self._pending:
            await self._wake.wait()
            return
        soonest = min(entry.due for entry in self._pending.values())
        timer = self._clock.call_at(max(soonest, now), self._wake.set)
        await self._wake.wait()
        timer.cancel()

    async def _send(self, entry: _Pending) -> Object | None:
        """Write a status, reduced to what CRDs of the first release accept; None if the object is gone."""
        kind, metadata = kind_of(entry.subject), entry.subject["metadata"]
        put = partial(self._kube.set_status, kind, metadata["name"], metadata["namespace"], uid=metadata["uid"])
        try:
            return await put(status=entry.status)
        except KubernetesError as error:
            known = _known_to_first_crds(entry.status)
            if error.status != _INVALID or known == entry.status:
                raise
            after = await put(status=known)
            if not self._warned:
                self._warned = True
                log.warning("writing statuses without the conditions that the CRDs reject; update the CRDs: %s", error)
            return after

    async def _write(self, entry: _Pending) -> None:
        kind, metadata = kind_of(entry.subject), entry.subject["metadata"]
        uid = metadata["uid"]
        before = self._cache.get(kind, metadata["namespace"], metadata["name"]) or entry.subject
        try:
            after = await self._send(entry)
        except KubernetesError as error:
            name = f"{metadata['namespace']}/{metadata['name']}"
            log.warning("cannot write the status of %s %s; retrying in %g s: %s", kind.name, name, _RETRY, error)
            entry.due = self._clock.now() + _RETRY
            return
        self._not_before[uid] = self._clock.now() + self._interval
        if after is not None:
            self.written += 1
            if after.get("status") == entry.status:
                # Share the object: readers compare by identity, and it is in memory once.
                after["status"] = entry.status
            self._cache.put(kind, after)
            self._on_written(before, after)
        if self._pending.get(uid) is entry:
            del self._pending[uid]
        elif uid in self._pending:
            self._pending[uid].due = self._not_before[uid]


def _known_to_first_crds(status: Object) -> Object:
    conditions = status.get("conditions")
    if conditions is None:
        return status
    return {**status, "conditions": [entry for entry in conditions if entry["type"] in FIRST_TYPES]}
