"""What the store reports of its replicas: `load/<s>`, bound to the store's lease.

Sizes and rates are rounded to two digits and written only when something changed, so that a store at rest costs the
metastore nothing. The same look tells which replicas are being filled without getting fuller.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import msgspec

from evenkeel.errors import LeaseNotFoundError, RefusedError, UnreachableError
from evenkeel.metastore.api import Lease, Put, Txn
from evenkeel.protocol.records import GroupLoad, StoreLoad, encode
from evenkeel_raft.agent.context import Context
from evenkeel_raft.agent.groups import GroupReport, Partition

__all__ = ["LoadReports", "Stalls", "load_of"]

log = logging.getLogger(__name__)

_MOST_PROBLEMS: Final = 500
_LONGEST_PROBLEM: Final = 500
_RESTORING: Final = 10
"""How many times longer a replica may take to restore what it has received: how far it is, nobody can tell."""


def load_of(
    reports: Mapping[Partition, GroupReport],
    *,
    rates: Mapping[Partition, float],
    problems: Mapping[Partition, str],
) -> StoreLoad:
    """The report of a store that has these replicas, whose leaders take so many bytes per second."""
    tables: dict[str, list[GroupLoad]] = {}
    for partition, report in sorted(reports.items()):
        rate = _rough(rates.get(partition, 0.0))
        load = GroupLoad(partition.partition, report.leading, _rough(report.log_bytes), rate)
        tables.setdefault(partition.table, []).append(load)
    return StoreLoad(
        replicas=len(reports),
        leading=sum(report.leading for report in reports.values()),
        log_bytes=_rough(sum(report.log_bytes for report in reports.values())),
        bytes_per_second=_rough(sum(rates.values())),
        tables={table: tuple(loads) for table, loads in tables.items()},
        filling={
            _name(partition): {store: round(done, 2) for store, done in sorted(report.filling.items())}
            for partition, report in sorted(reports.items())
            if report.filling
        },
        problems={_name(partition): _short(text) for partition, text in sorted(problems.items())[:_MOST_PROBLEMS]},
        damaged=tuple(_name(partition) for partition in _damaged(reports)[:_MOST_PROBLEMS]),
    )


def _damaged(reports: Mapping[Partition, GroupReport]) -> list[Partition]:
    return sorted(partition for partition, report in reports.items() if report.damaged)


def _rough(number: float) -> int:
    """Two digits that count."""
    whole = round(number)
    unit = int(10 ** max(0, len(str(whole)) - 2))
    return whole // unit * unit


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_PROBLEM else text[:_LONGEST_PROBLEM] + " ..."


def _name(partition: Partition) -> str:
    return f"{partition.table}/{partition.partition}"


class _Progress(msgspec.Struct):
    done: float
    since: float
    stalled: bool = False


class Stalls:
    """Members being filled that have not got fuller for too long."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._progress: dict[tuple[Partition, str], _Progress] = {}

    def look(self, reports: Mapping[Partition, GroupReport], *, now: float) -> list[Partition]:
        """Compare with the last look; returns the partition of each that has come to a standstill since then."""
        before, self._progress = self._progress, {}
        fresh: list[Partition] = []
        for partition, report in reports.items():
            for store, done in report.filling.items():
                known = before.get((partition, store))
                if known is None or done > known.done:
                    known = _Progress(done, now)
                elif not known.stalled and now - known.since >= self._seconds * (_RESTORING if done >= 1 else 1):
                    known.stalled = True
                    fresh.append(partition)
                self._progress[partition, store] = known
        return fresh

    def problems(self) -> Iterator[tuple[Partition, str]]:
        """Those at a standstill."""
        for (partition, store), progress in self._progress.items():
            if progress.stalled and progress.done >= 1:
                yield partition, f"the replica on {store} has received everything, and its store does not restore it"
            elif progress.stalled:
                yield partition, f"the replica on {store} is {progress.done:.0%} full and gets no fuller"


class LoadReports:
    """Looks at the replicas from time to time, and reports."""

    def __init__(
        self,
        context: Context,
        *,
        lease: Callable[[], Lease | None],
        problems: Callable[[Mapping[Partition, GroupReport]], Mapping[Partition, str]],
        stalled: Callable[[Partition], None],
    ) -> None:
        """`stalled` is told of each member of a partition that is filled no further."""
        self._context = context
        self._lease = lease
        self._problems = problems
        self._stalled = stalled
        self._proposed: dict[Partition, int] = {}
        self._looked = context.clock.now()
        self._said: tuple[Mapping[Partition, object], ...] = ()
        self._value = b""
        self._written: tuple[bytes, int] | None = None
        self.stalls = Stalls(context.settings.stalled_seconds)

    async def run(self) -> None:
        """Report, until cancelled."""
        while True:
            await self._context.clock.sleep(self._context.settings.report_seconds)
            reports = self._context.groups.reports()
            now = self._context.clock.now()
            for partition in self.stalls.look(reports, now=now):
                self._context.counters.failures["catch-up"] += 1
                self._stalled(partition)
            rates = self._rates(reports, now)
            await self._write(self._encoded(reports, rates, self._problems(reports)))

    def _encoded(
        self,
        reports: Mapping[Partition, GroupReport],
        rates: Mapping[Partition, float],
        problems: Mapping[Partition, str],
    ) -> bytes:
        """The report, made anew where there is news: most groups sleep most of the time."""
        said = (reports, rates, problems)
        if said != self._said:
            self._said, self._value = said, encode(load_of(reports, rates=rates, problems=problems))
        return self._value

    async def _write(self, value: bytes) -> None:
        lease = self._lease()
        if lease is None or self._written == (value, lease.id):
            return
        put = Put(self._context.keys.load(self._context.me.store), value, lease.id)
        try:
            await self._context.metastore.txn(Txn(success=(put,)))
        except (UnreachableError, LeaseNotFoundError):
            self._context.counters.transactions["load", "unknown"] += 1
        except RefusedError as error:
            self._context.counters.transactions["load", "refused"] += 1
            log.warning("the store's load is not reported: %s", error)
        else:
            self._context.counters.transactions["load", "done"] += 1
            self._written = (value, lease.id)

    def _rates(self, reports: Mapping[Partition, GroupReport], now: float) -> dict[Partition, float]:
        elapsed = max(now - self._looked, 1e-3)
        before, self._proposed = self._proposed, {p: report.proposed_bytes for p, report in reports.items()}
        self._looked = now
        return {
            partition: (proposed - before[partition]) / elapsed
            for partition, proposed in self._proposed.items()
            if proposed > before.get(partition, proposed)
        }
