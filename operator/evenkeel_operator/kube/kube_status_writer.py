"""Statuses on their way to the API server: the newest of each object, at most one every few seconds.

Whoever sets a status reads it back at once, long before it is written: what is decided next rests on what was decided
last, and times of conditions do not jump.

CRDs of the first release list the types of conditions that they know, and the API server refuses a status with any
other one. Such a status is written once more without those conditions: a Ready that was published would stay for ever.
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

__all__ = ["StatusWriter"]

log = logging.getLogger(__name__)

_EVERY: Final = 1.0
_RETRY: Final = 5.0
_AT_ONCE: Final = 8
_INVALID: Final = 422
_NONE: Final[Object] = {}
"""Always the same, so that an object without a status is seen to have stayed as it was."""

Told = Callable[[Object, Object], None]
"""Hears of every status that was written: the object before and after."""


class _Waiting(msgspec.Struct):
    subject: Object
    status: Object
    due: float


class StatusWriter:
    """Statuses that are to be written."""

    def __init__(
        self,
        kube: Kube,
        cache: Cache,
        *,
        told: Told = lambda before, after: None,
        every: float = _EVERY,
        clock: Clock | None = None,
    ) -> None:
        self._kube = kube
        self._cache = cache
        self._told = told
        self._every = every
        self._clock = clock or SystemClock()
        self._waiting: dict[str, _Waiting] = {}
        self._again: dict[str, float] = {}
        """By uid: when the next status may be written."""
        self._news = asyncio.Event()
        self.written = 0
        """How many have been written so far."""
        self._warned = False
        """Whether it was logged that the CRDs refuse conditions."""

    def of(self, subject: Object) -> Object:
        """The status that an object has, or is about to have."""
        waiting = self._waiting.get(subject["metadata"]["uid"])
        found: Object = waiting.status if waiting is not None else subject.get("status") or _NONE
        return found

    def set(self, subject: Object, status: Object) -> Object:
        """Have a status written; what `of` tells from now on, until it changes."""
        if (known := self.of(subject)) == status:
            return known
        uid = subject["metadata"]["uid"]
        self._waiting[uid] = _Waiting(subject, status, self._again.get(uid, self._clock.now()))
        self._news.set()
        return status

    def __len__(self) -> int:
        return len(self._waiting)

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            now = self._clock.now()
            self._again = {uid: when for uid, when in self._again.items() if when > now}
            due = [entry for entry in self._waiting.values() if entry.due <= now]
            if not due:
                await self._wait(now)
                continue
            for first in range(0, len(due), _AT_ONCE):
                await asyncio.gather(*map(self._write, due[first : first + _AT_ONCE]))

    async def flush(self) -> None:
        """Write what waits, without waiting any longer."""
        await asyncio.gather(*map(self._write, list(self._waiting.values())))

    async def _wait(self, now: float) -> None:
        self._news.clear()
        if not self._waiting:
            await self._news.wait()
            return
        soonest = min(entry.due for entry in self._waiting.values())
        timer = self._clock.call_at(max(soonest, now), self._news.set)
        await self._news.wait()
        timer.cancel()

    async def _send(self, entry: _Waiting) -> Object | None:
        """Write a status, or what CRDs of the first release take of it; None where the object is gone."""
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
                log.warning("statuses are written without the conditions that the CRDs refuse, update these: %s", error)
            return after

    async def _write(self, entry: _Waiting) -> None:
        kind, metadata = kind_of(entry.subject), entry.subject["metadata"]
        uid = metadata["uid"]
        before = self._cache.get(kind, metadata["namespace"], metadata["name"]) or entry.subject
        try:
            after = await self._send(entry)
        except KubernetesError as error:
            log.warning("the status of %s %s/%s waits: %s", kind.name, metadata["namespace"], metadata["name"], error)
            entry.due = self._clock.now() + _RETRY
            return
        self._again[uid] = self._clock.now() + self._every
        if after is not None:
            self.written += 1
            if after.get("status") == entry.status:
                # The same object, so that whoever knows it knows this one too, and it is in memory once.
                after["status"] = entry.status
            self._cache.put(kind, after)
            self._told(before, after)
        if self._waiting.get(uid) is entry:
            del self._waiting[uid]
        elif uid in self._waiting:
            self._waiting[uid].due = self._again[uid]


def _known_to_first_crds(status: Object) -> Object:
    conditions = status.get("conditions")
    if conditions is None:
        return status
    return {**status, "conditions": [entry for entry in conditions if entry["type"] in FIRST_TYPES]}
