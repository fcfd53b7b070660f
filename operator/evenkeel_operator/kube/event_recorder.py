"""What happened, as Events that `kubectl describe` shows: every condition that turned, told once."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Final, NamedTuple

from evenkeel.errors import KubernetesError
from evenkeel.kube.kube_client import FIELD_MANAGER, Kube
from evenkeel.kube.object_kinds import EVENT, Object
from evenkeel.model.conditions import REPEATING
from evenkeel.runtime.clock import Clock, SystemClock

__all__ = ["Recorder", "Transition", "turned"]

log = logging.getLogger(__name__)

_LONGEST: Final = 1024
_QUEUED: Final = 1000
_REMEMBERED: Final = 1000
_AGAIN_SECONDS: Final = 300.0
_BAD_IF: Final = {"Ready": "False", "Degraded": "True"}


class Transition(NamedTuple):
    """Something worth telling about an object."""

    subject: Object
    warning: bool
    reason: str
    message: str


def turned(before: Object, after: Object) -> Iterator[Transition]:
    """The conditions that an object's new status has turned, or gives another reason for."""
    known = {found["type"]: found for found in (before.get("status") or {}).get("conditions", ())}
    new = {
        condition["type"]: condition
        for condition in (after.get("status") or {}).get("conditions", ())
        if condition["type"] not in REPEATING and _verdict(known.get(condition["type"], {})) != _verdict(condition)
    }
    if after.get("kind") == "PartitionAssignment":
        # The Table says it of all its partitions.
        new.pop("Ready", None)
    if "Balanced" in new and "Progressing" in new and new["Balanced"]["reason"] == new["Progressing"]["reason"]:
        # Two sides of the same thing, in the same words.
        del new["Progressing"]
    for kind, condition in new.items():
        was, status, reason = known.get(kind, {}), condition["status"], condition["reason"]
        bad = _BAD_IF.get(kind) == status
        if not was and not bad and reason == "AsExpected" and kind != "Ready":
            continue
        words = condition.get("message") or f"{kind} is {status}"
        yield Transition(after, bad, reason if reason != "AsExpected" else kind, f"{kind} {status}: {words}"[:_LONGEST])


def _verdict(condition: Object) -> tuple[str | None, str | None]:
    return condition.get("status"), condition.get("reason")


class Recorder:
    """Tells the API server, in its own time; what it cannot tell is dropped."""

    def __init__(
        self,
        kube: Kube,
        *,
        instance: str,
        clock: Clock | None = None,
        wall_clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._kube = kube
        self._instance = instance
        self._clock = clock or SystemClock()
        self._wall_clock = wall_clock
        self._queue: asyncio.Queue[Transition] = asyncio.Queue(_QUEUED)
        self._told: OrderedDict[tuple[str, str, str], float] = OrderedDict()

    def hear(self, before: Object, after: Object) -> None:
        """A status was written."""
        for happening in turned(before, after):
            self.tell(happening)

    def tell(self, happening: Transition) -> None:
        """Tell it, unless it was told just now."""
        key = (happening.subject["metadata"]["uid"], happening.reason, happening.message)
        now = self._clock.now()
        if now - self._told.get(key, float("-inf")) < _AGAIN_SECONDS or self._queue.full():
            return
        self._told[key] = now
        while len(self._told) > _REMEMBERED:
            self._told.popitem(last=False)
        self._queue.put_nowait(happening)

    async def run(self) -> None:
        """Tell until cancelled."""
        while True:
            happening = await self._queue.get()
            try:
                await self._kube.create(self._event(happening))
            except KubernetesError as error:
                log.debug("an Event is dropped: %s", error)

    def _event(self, happening: Transition) -> Object:
        subject, now = happening.subject, self._wall_clock().astimezone(UTC)
        metadata, moment = subject["metadata"], now.strftime("%Y-%m-%dT%H:%M:%SZ")
        return {
            "apiVersion": EVENT.api_version,
            "kind": EVENT.name,
            "metadata": {"generateName": f"{metadata['name'][:200]}.", "namespace": metadata["namespace"]},
            "involvedObject": {
                "apiVersion": subject["apiVersion"],
                "kind": subject["kind"],
                "name": metadata["name"],
                "namespace": metadata["namespace"],
                "uid": metadata["uid"],
            },
            "type": "Warning" if happening.warning else "Normal",
            "reason": happening.reason,
            "message": happening.message,
            "source": {"component": FIELD_MANAGER},
            "reportingComponent": FIELD_MANAGER,
            "reportingInstance": self._instance,
            "firstTimestamp": moment,
            "lastTimestamp": moment,
            "count": 1,
        }
