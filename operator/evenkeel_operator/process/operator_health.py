"""How the operator is: what its probes, its metrics and its status page tell."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Final

import msgspec

from evenkeel.kube.object_kinds import Kind

__all__ = ["HealthReport", "OperatorHealth"]

_STUCK_SECONDS: Final = 300.0
"""A key that has waited so long will wait for ever."""
_DEAF_SWEEPS: Final = 2
"""So often in a row may a sweep find what no watch has told."""


class HealthReport(msgspec.Struct, frozen=True, kw_only=True):
    """A moment of the operator."""

    leading: bool
    leader: str
    etcd: str
    """Empty where it answers, else why not."""
    etcd_full: str
    """Why it refuses writes for lack of space; empty where it does not."""
    etcd_reliefs: int
    """How often space was freed in it."""
    api_server: str
    """Empty where it answers, else why not."""
    crds: str | None
    """Empty where they match the operator, else what to do; None where nobody knows."""
    seconds_since_watch_event: float | None
    seconds_since_sweep: float | None
    oldest_seconds: float
    """How long the longest-waiting key has waited."""
    deaf: int
    """Sweeps in a row that found what no watch has told."""


class OperatorHealth:
    """Everybody notes here what they see; nobody asks anything of the outside."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self.leading = False
        self.leader = ""
        self.etcd = "not asked yet"
        self.etcd_full = ""
        self.etcd_reliefs = 0
        self.api_server = "not asked yet"
        self.crds: str | None = None
        self.events: Counter[Kind] = Counter()
        self.requests: Counter[tuple[str, str, int]] = Counter()
        """By verb, plural and answer."""
        self.deaf = 0
        self.oldest: Callable[[], float] = lambda: 0.0
        self._watched: float | None = None
        self._swept: float | None = None

    def saw_event(self, kind: Kind) -> None:
        """A watch has told something."""
        self.events[kind] += 1
        self._watched = self._now()

    def saw_request(self, verb: str, kind: Kind, status: int) -> None:
        """The API server was asked."""
        self.requests[verb, kind.plural, status] += 1
        self.api_server = "" if status else "it does not answer"

    def swept(self, *, missed: int) -> None:
        """Everything was listed; `missed` is what watches should have told and did not."""
        self._swept = self._now()
        self.deaf = self.deaf + 1 if missed else 0

    def report(self) -> HealthReport:
        """This moment."""
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
        """Why the process should be started anew; empty if it should not."""
        report = self.report()
        if report.deaf >= _DEAF_SWEEPS:
            return f"{report.deaf} sweeps in a row found changes that no watch has told"
        if report.oldest_seconds > _STUCK_SECONDS:
            return f"something has waited for {report.oldest_seconds:.0f} s to be looked at"
        return ""

    def unready(self) -> str:
        """Why the operator cannot do its work; empty if it can."""
        if self.api_server:
            return f"API server: {self.api_server}"
        if self.etcd:
            return f"etcd: {self.etcd}"
        return "" if self.leader else "nobody leads yet"
