"""Health of the operator, for its probes, metrics and status page."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Final

import msgspec

from evenkeel.kube.object_kinds import Kind

__all__ = ["HealthReport", "OperatorHealth"]

_STUCK_SECONDS: Final = 300.0
"""A key that has been due for so long is stuck."""
_DEAF_SWEEPS: Final = 2
"""Number of consecutive sweeps with missed changes at which the watches count as broken."""


class HealthReport(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the operator at one time."""

    leading: bool
    leader: str
    etcd: str
    """Why etcd does not answer; empty if it does."""
    etcd_full: str
    """Why etcd rejects writes for lack of space; empty if it does not."""
    etcd_reliefs: int
    """How often the operator freed space in etcd."""
    api_server: str
    """Why the API server does not answer; empty if it does."""
    crds: str | None
    """What is wrong with the CRDs; empty if they match, None if that is unknown."""
    seconds_since_watch_event: float | None
    seconds_since_sweep: float | None
    oldest_seconds: float
    """For how long the longest-waiting key has been due."""
    deaf: int
    """Consecutive sweeps that found changes that no watch delivered."""


class OperatorHealth:
    """Collects observations; makes no requests."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self.leading = False
        self.leader = ""
        self.etcd = "not checked yet"
        self.etcd_full = ""
        self.etcd_reliefs = 0
        self.api_server = "not checked yet"
        self.crds: str | None = None
        self.events: Counter[Kind] = Counter()
        self.requests: Counter[tuple[str, str, int]] = Counter()
        """By verb, plural and status code."""
        self.deaf = 0
        self.oldest: Callable[[], float] = lambda: 0.0
        self._watched: float | None = None
        self._swept: float | None = None

    def saw_event(self, kind: Kind) -> None:
        """Count a watch event."""
        self.events[kind] += 1
        self._watched = self._now()

    def saw_request(self, verb: str, kind: Kind, status: int) -> None:
        """Count a request to the API server; status 0 means that it did not answer."""
        self.requests[verb, kind.plural, status] += 1
        self.api_server = "" if status else "no answer"

    def swept(self, *, missed: int) -> None:
        """Note a sweep; `missed` is the number of changes that no watch delivered."""
        self._swept = self._now()
        self.deaf = self.deaf + 1 if missed else 0

    def report(self) -> HealthReport:
        """Return the current state."""
        return HealthReport(
            leading=self.leading,
            leader=self.leader,
            etcd=self.etcd,
            etcd_full=self.etcd_full,
            etcd_reliefs=self.etcd_reliefs,
            api_server=self.api_server,
            crds=self.crds,
            seconds_since_watch_event=None if self._watched is None else self._now() - self._watched,
            seconds_since_sweep=None if self._swept is None else self._now() - self._swept,
            oldest_seconds=self.oldest() if self.leading else 0.0,
            deaf=self.deaf,
        )

    def unhealthy(self) -> str:
        """Return why the process should be restarted; empty if it should not."""
        report = self.report()
        if report.deaf >= _DEAF_SWEEPS:
            return f"{report.deaf} consecutive sweeps found changes that no watch delivered"
        if report.oldest_seconds > _STUCK_SECONDS:
            return f"an object has waited for {report.oldest_seconds:.0f} s to be reconciled"
        return ""

    def unready(self) -> str:
        """Return why the operator cannot work; empty if it can."""
        if self.api_server:
            return f"API server: {self.api_server}"
        if self.etcd:
            return f"etcd: {self.etcd}"
        return "" if self.leader else "no replica leads yet"
