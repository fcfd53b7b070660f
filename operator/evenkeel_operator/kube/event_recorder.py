"""Events for `kubectl describe`: one for each transition of a condition."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import UTC, datetime
from typing import Final, NamedTuple

from evenkeel.errors import KubernetesError
from evenkeel.kube.kube_client import FIELD_MANAGER, Kube
from evenkeel.kube.object_kinds import EVENT, Object
from evenkeel.model.conditions import DERIVED_CONDITIONS
from evenkeel.runtime.clock import Clock, SystemClock

__all__ = ["EventRecorder", "Transition", "transitions"]

log = logging.getLogger(__name__)

_LONGEST: Final = 1024
_QUEUED: Final = 1000
_REMEMBERED: Final = 1000
_REPEAT_SECONDS: Final = 300.0
_BAD_IF: Final = {"Ready": "False", "Degraded": "True"}

QuietConditions = Mapping[str, Collection[str]]
"""By the name of a kind, the condition types that another object's Events report already."""
_NOTHING_QUIET: Final[QuietConditions] = {}


class Transition(NamedTuple):
    """A condition that changed, as the Event to record about an object."""

    subject: Object
    warning: bool
    reason: str
    message: str


def transitions(before: Object, after: Object, *, quiet: QuietConditions = _NOTHING_QUIET) -> Iterator[Transition]:
    """Return the conditions whose status or reason a new object status has changed."""
    known = {found["type"]: found for found in (before.get("status") or {}).get("conditions", ())}
    new = {
        condition["type"]: condition
        for condition in (after.get("status") or {}).get("conditions", ())
        if condition["type"] not in DERIVED_CONDITIONS
        and _verdict(known.get(condition["type"], {})) != _verdict(condition)
    }
    for kind in quiet.get(after.get("kind", ""), ()):
        new.pop(kind, None)
    if "Balanced" in new and "Progressing" in new and new["Balanced"]["reason"] == new["Progressing"]["reason"]:
        # Both conditions report the same rebalance.
        del new["Progressing"]
    for kind, condition in new.items():
        old, status, reason = known.get(kind, {}), condition["status"], condition["reason"]
        bad = _BAD_IF.get(kind) == status
        if not old and not bad and reason == "AsExpected" and kind != "Ready":
            continue
        message = f"{kind} {status}: {condition.get('message') or f'{kind} is {status}'}"[:_LONGEST]
        yield Transition(after, bad, reason if reason != "AsExpected" else kind, message)


def _verdict(condition: Object) -> tuple[str | None, str | None]:
    return condition.get("status"), condition.get("reason")


class EventRecorder:
    """Creates Events in the background; drops those that the API server does not accept."""

    def __init__(
        self,
        kube: Kube,
        *,
        instance: str,
        quiet: QuietConditions = _NOTHING_QUIET,
        clock: Clock | None = None,
        wall_clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`instance` is the name of this replica; `quiet` has the conditions that are never recorded."""
        self._kube = kube
        self._instance = instance
        self._quiet = quiet
        self._clock = clock or SystemClock()
        self._wall_clock = wall_clock
        self._queue: asyncio.Queue[Transition] = asyncio.Queue(_QUEUED)
        self._recorded: OrderedDict[tuple[str, str, str], float] = OrderedDict()

    def status_written(self, before: Object, after: Object) -> None:
        """Record the transitions of a status that was written."""
        for transition in transitions(before, after, quiet=self._quiet):
            self.record(transition)

    def record(self, transition: Transition) -> None:
        """Enqueue an Event, unless the same one was recorded recently."""
        key = (transition.subject["metadata"]["uid"], transition.reason, transition.message)
        now = self._clock.now()
        if now - self._recorded.get(key, float("-inf")) < _REPEAT_SECONDS or self._queue.full():
            return
        self._recorded[key] = now
        while len(self._recorded) > _REMEMBERED:
            self._recorded.popitem(last=False)
        self._queue.put_nowait(transition)

    async def run(self) -> None:
        """Create Events until cancelled."""
        while True:
            transition = await self._queue.get()
            try:
                await self._kube.create(self._event(transition))
            except KubernetesError as error:
                log.debug("dropped an Event: %s", error)

    def _event(self, transition: Transition) -> Object:
        subject, now = transition.subject, self._wall_clock().astimezone(UTC)
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
            "type": "Warning" if transition.warning else "Normal",
            "reason": transition.reason,
            "message": transition.message,
            "source": {"component": FIELD_MANAGER},
            "reportingComponent": FIELD_MANAGER,
            "reportingInstance": self._instance,
            "firstTimestamp": moment,
            "lastTimestamp": moment,
            "count": 1,
        }
