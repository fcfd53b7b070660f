"""Leader election among the operator's replicas, by a Lease.

The holder renews the Lease; a candidate takes it when it was not renewed for its whole duration. Each candidate
measures that duration on its own clock, from when it first saw the current version of the Lease, so clocks need not
agree. A leader stops before another may start: it gives up when it could not renew for two thirds of the duration.

The Lease does not fence: a leader that was suspended may still write when it resumes. The epoch in the metastore fences
(`evenkeel.metastore.operator_epoch`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from evenkeel.errors import ApiConflictError, KubernetesError, LeaseNotFoundError
from evenkeel.kube.kube_client import Kube
from evenkeel.kube.object_kinds import LEASE, Object
from evenkeel.runtime.clock import Clock, SystemClock
from evenkeel_operator.kube.object_applier import foreign, written_by_operator
from evenkeel_operator.manifests.object_names import MANAGED

__all__ = ["LeaseLock"]

log = logging.getLogger(__name__)

_DURATION: Final = 15.0
_RETRY: Final = 2.0


class LeaseLock:
    """One candidate's view of the Lease."""

    def __init__(
        self,
        kube: Kube,
        *,
        name: str,
        namespace: str,
        identity: str,
        duration: float = _DURATION,
        clock: Clock | None = None,
        wall_clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._kube = kube
        self._name = name
        self._namespace = namespace
        self._identity = identity
        self._duration = duration
        self._retry = min(_RETRY, duration / 5)
        self._clock = clock or SystemClock()
        self._wall_clock = wall_clock
        self._seen: Object | None = None
        self._seen_at = 0.0

    @property
    def holder(self) -> str:
        """The holder at the last read or write."""
        return str(self._seen["spec"].get("holderIdentity") or "") if self._seen is not None else ""

    async def acquire(self) -> None:
        """Wait until this replica holds the Lease."""
        while not await self._try():
            await self._clock.sleep(self._retry)
        log.info("leading as %s", self._identity)

    async def hold(self) -> None:
        """Renew the Lease until it is lost, then raise LeaseNotFoundError."""
        until = self._clock.now() + self._duration * 2 / 3
        while self._clock.now() < until:
            await self._clock.sleep(self._retry)
            asked = self._clock.now()
            if await self._try_until(until):
                until = asked + self._duration * 2 / 3
            elif self.holder != self._identity:
                raise LeaseNotFoundError(f"{self.holder} holds the Lease now")
        raise LeaseNotFoundError(f"the Lease {self._namespace}/{self._name} could not be renewed in time")

    async def release(self) -> None:
        """Give up the Lease, so that another replica can lead at once."""
        if self._seen is None or self.holder != self._identity:
            return
        spec = self._seen["spec"] | {"holderIdentity": "", "leaseDurationSeconds": 1}
        try:
            await self._kube.replace(self._seen | {"spec": spec})
        except KubernetesError as error:
            log.info("cannot release the Lease, which will expire: %s", error)

    async def _try_until(self, moment: float) -> bool:
        """Renew the Lease by a deadline: a slow API server must not extend this replica's leadership."""
        trying = asyncio.create_task(self._try())
        timer = self._clock.call_at(moment, lambda: _cancel(trying))
        try:
            await asyncio.wait((trying,))
            return not trying.cancelled() and trying.result()
        finally:
            timer.cancel()
            trying.cancel()

    async def _try(self) -> bool:
        """Take or renew the Lease; return False if that is not possible now."""
        try:
            self._observe(await self._kube.get(LEASE, self._name, self._namespace))
            if self._seen is not None and not _ours(self._seen):
                raise foreign(self._seen, remedy="rename or delete it, or install the operator under another name")
            if self.holder not in ("", self._identity) and not self._expired():
                return False
            written = self._written()
            write = self._kube.create if self._seen is None else self._kube.replace
            self._observe(await write(written))
        except ApiConflictError:
            return False
        except KubernetesError as error:
            log.warning("cannot read or renew the Lease; retrying: %s", error)
            return False
        return True

    def _observe(self, found: Object | None) -> None:
        if self._seen is None or found is None or _version(found) != _version(self._seen):
            self._seen_at = self._clock.now()
        self._seen = found

    def _expired(self) -> bool:
        assert self._seen is not None
        duration = float(self._seen["spec"].get("leaseDurationSeconds") or self._duration)
        return self._clock.now() - self._seen_at >= duration

    def _written(self) -> Object:
        now = self._wall_clock().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": max(1, round(self._duration)),
            "acquireTime": now,
            "renewTime": now,
            "leaseTransitions": 0,
        }
        if self._seen is None:
            label, _, value = MANAGED.partition("=")
            metadata = {"name": self._name, "namespace": self._namespace, "labels": {label: value}}
            return {"apiVersion": LEASE.api_version, "kind": LEASE.name, "metadata": metadata, "spec": spec}
        before = self._seen["spec"]
        if before.get("holderIdentity") == self._identity:
            spec["acquireTime"] = before.get("acquireTime", now)
            spec["leaseTransitions"] = before.get("leaseTransitions", 0)
        else:
            spec["leaseTransitions"] = before.get("leaseTransitions", 0) + 1
        return self._seen | {"spec": spec}


def _cancel(task: asyncio.Task[bool]) -> None:
    task.cancel()


def _version(lease: Object) -> str:
    return str(lease["metadata"].get("resourceVersion", ""))


def _ours(lease: Object) -> bool:
    """Whether an operator created the Lease; releases before the label are recognized by the field manager."""
    label, _, value = MANAGED.partition("=")
    return (lease["metadata"].get("labels") or {}).get(label) == value or written_by_operator(lease)
