"""Reports load, sizes and problems of the store, bound to the store's lease.

Sizes and rates are rounded to two digits, and `report_budget` selects what is written when: an idle store costs the
metastore nothing, and a busy one at most its share. The same pass detects stalled snapshot transfers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import msgspec

from evenkeel.errors import LeaseNotFoundError, RefusedError, UnreachableError
from evenkeel.metastore.metastore_api import Delete, Lease, Put, Txn
from evenkeel.protocol.keys import Keys
from evenkeel.protocol.records import GroupLoad, StoreLoad
from evenkeel_raft.agent.agent_context import AgentContext
from evenkeel_raft.agent.agent_settings import Tuning
from evenkeel_raft.agent.report_budget import LEAST_RATE, BudgetedReport, cost, rough
from evenkeel_raft.shared.raft_groups import GroupReport, Partition

__all__ = ["CopyRate", "StallDetector", "StoreReporter", "load_of", "slices_of", "with_tables"]

log = logging.getLogger(__name__)

_MOST_PROBLEMS: Final = 500
_LONGEST_PROBLEM: Final = 500
_MOST_FILLING: Final = 100
_MEASURED_BYTES: Final = 1 << 20
_MEASURED_SECONDS: Final = 5.0
_MEMORY_SECONDS: Final = 60.0
_RESTORE_FACTOR: Final = 10
"""A replica may take so many times longer to restore a received snapshot, because its progress is unknown."""


def load_of(
    reports: Mapping[Partition, GroupReport],
    *,
    rates: Mapping[Partition, float],
    problems: Mapping[Partition, str],
    clock_ahead: int = 0,
    copies: float | None = None,
) -> StoreLoad:
    """Return the report of a store with these replicas, without sizes.

    `rates` are the bytes per second proposed to each group; `copies` is the bytes per second copied to the store.
    """
    return StoreLoad(
        replicas=len(reports),
        leading=sum(report.leading for report in reports.values()),
        log_bytes=rough(sum(report.log_bytes for report in reports.values())),
        bytes_per_second=rough(sum(rates.values())),
        copied_per_second=None if copies is None else rough(copies),
        filling={
            _name(partition): {store: round(done, 2) for store, done in sorted(report.filling.items())}
            for partition, report in sorted(_furthest(reports))
        },
        problems={_name(partition): _short(text) for partition, text in sorted(problems.items())[:_MOST_PROBLEMS]},
        damaged=tuple(_name(partition) for partition in _damaged(reports)[:_MOST_PROBLEMS]),
        clock_ahead=clock_ahead,
    )


def slices_of(reports: Mapping[Partition, GroupReport], *, keys: Keys, store: str) -> dict[str, dict[int, int]]:
    """Return the sizes of these replicas by the key that reports them."""
    slices: dict[str, dict[int, int]] = {}
    for (table, partition), report in reports.items():
        if report.bytes is not None:
            slices.setdefault(keys.load_slice(store, table, partition), {})[partition] = report.bytes
    return slices


def with_tables(
    load: StoreLoad, reports: Mapping[Partition, GroupReport], *, rates: Mapping[Partition, float]
) -> StoreLoad:
    """Return the report in the older format, with sizes, for readers that know no other."""
    tables: dict[str, list[GroupLoad]] = {}
    for partition, report in sorted(reports.items()):
        size = None if report.bytes is None else rough(report.bytes)
        rate = rough(rates.get(partition, 0.0))
        group = GroupLoad(partition.partition, report.leading, rough(report.log_bytes), rate, size)
        tables.setdefault(partition.table, []).append(group)
    return msgspec.structs.replace(load, tables={table: tuple(groups) for table, groups in tables.items()})


def _furthest(reports: Mapping[Partition, GroupReport]) -> list[tuple[Partition, GroupReport]]:
    """Return the replicas that send snapshots; of very many, those with the most progress."""
    filling = [(partition, report) for partition, report in reports.items() if report.filling]
    return sorted(filling, key=lambda entry: (-max(entry[1].filling.values()), entry[0]))[:_MOST_FILLING]


def _damaged(reports: Mapping[Partition, GroupReport]) -> list[Partition]:
    return sorted(partition for partition, report in reports.items() if report.damaged)


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_PROBLEM else text[:_LONGEST_PROBLEM] + " ..."


def _name(partition: Partition) -> str:
    return f"{partition.table}/{partition.partition}"


class _Progress(msgspec.Struct):
    done: float
    since: float
    stalled: bool = False


class StallDetector:
    """Detects snapshot transfers that make no progress."""

    def __init__(self, tuning: Tuning) -> None:
        self._tuning = tuning
        self._progress: dict[tuple[Partition, str], _Progress] = {}

    def check(self, reports: Mapping[Partition, GroupReport], *, now: float) -> list[Partition]:
        """Compare with the previous check; return the partition of each newly stalled transfer."""
        before, self._progress = self._progress, {}
        timeout = self._tuning.current.stalled_seconds
        fresh: list[Partition] = []
        for partition, report in reports.items():
            for store, done in report.filling.items():
                known = before.get((partition, store))
                if known is None or done > known.done:
                    known = _Progress(done, now)
                elif not known.stalled and now - known.since >= timeout * (_RESTORE_FACTOR if done >= 1 else 1):
                    known.stalled = True
                    fresh.append(partition)
                self._progress[partition, store] = known
        return fresh

    def problems(self) -> Iterator[tuple[Partition, str]]:
        """Yield the stalled transfers."""
        for (partition, store), progress in self._progress.items():
            if progress.stalled and progress.done >= 1:
                yield partition, f"snapshot restore stalled on {store}: all data received, not restored"
            elif progress.stalled:
                yield partition, f"snapshot transfer to {store} stalled at {progress.done:.0%}"


class CopyRate:
    """Measures how fast replicas are copied to this store."""

    def __init__(self) -> None:
        self._seen = (0, 0.0)
        self.bytes_per_second: float | None = None

    def update(self, received: tuple[int, float]) -> None:
        """Compare with the last measurement; longer and newer measurements weigh more."""
        size, seconds = (now - before for now, before in zip(received, self._seen, strict=True))
        if size < _MEASURED_BYTES and seconds < _MEASURED_SECONDS:
            return  # too little data to measure the rate rather than the waiting time
        self._seen = received
        measured, known = size / max(seconds, 1e-3), self.bytes_per_second
        weight = min(1.0, seconds / _MEMORY_SECONDS)
        self.bytes_per_second = measured if known is None else known + weight * (measured - known)


class StoreReporter:
    """Reports the store's load and replicas periodically."""

    def __init__(
        self,
        context: AgentContext,
        *,
        lease: Callable[[], Lease | None],
        problems: Callable[[Mapping[Partition, GroupReport]], Mapping[Partition, str]],
        stalled: Callable[[Partition], None],
        stores: Callable[[], int],
        sliced: Callable[[], bool],
    ) -> None:
        """`stalled` is called with the partition of each stalled snapshot transfer.

        `stores` returns how many stores share the budget, and `sliced` whether every reader knows the newer format.
        """
        self._context = context
        self._lease = lease
        self._problems = problems
        self._stalled = stalled
        self._stores = stores
        self._sliced = sliced
        self._proposed: dict[Partition, int] = {}
        self._measured_at = context.clock.now()
        self._budgeted = BudgetedReport(context.keys.load(context.me.store), rate=self._rate, now=self._measured_at)
        self._ahead = 0
        self._copies = CopyRate()
        self.stalls = StallDetector(context.tuning)

    @property
    def _rate(self) -> float:
        return max(LEAST_RATE, self._context.settings.report_bytes_per_second / max(1, self._stores()))

    async def run(self) -> None:
        """Report, until cancelled."""
        while True:
            await self._context.clock.sleep(self._context.settings.report_seconds)
            reports = self._context.groups.reports()
            now = self._context.clock.now()
            for partition in self.stalls.check(reports, now=now):
                self._context.counters.failures["catch-up"] += 1
                self._stalled(partition)
            await self._report(reports, now)

    async def _report(self, reports: Mapping[Partition, GroupReport], now: float) -> None:
        rates, lease = self._rates(reports, now), self._lease()
        if lease is None:
            return
        self._copies.update(self._context.groups.received())
        load = load_of(
            reports,
            rates=rates,
            problems=self._problems(reports),
            clock_ahead=self._clock_ahead(),
            copies=self._copies.bytes_per_second,
        )
        slices = slices_of(reports, keys=self._context.keys, store=self._context.me.store) if self._sliced() else {}
        if not self._sliced():
            load = with_tables(load, reports, rates=rates)
        for operations, done in self._budgeted.batches(load, slices, lease=lease.id, rate=self._rate, now=now):
            if not await self._write(operations):
                return
            done()

    def _clock_ahead(self) -> int:
        before, self._ahead = self._ahead, self._context.groups.clock_ahead()
        if self._ahead and not before:
            log.warning("the wall clock differs from most stores' by %+d s; check NTP on this node", self._ahead)
        return self._ahead

    async def _write(self, operations: tuple[Put | Delete, ...]) -> bool:
        counters = self._context.counters
        try:
            await self._context.metastore.txn(Txn(success=operations))
        except (UnreachableError, LeaseNotFoundError):
            counters.transactions["load", "unknown"] += 1
            return False
        except RefusedError as error:
            counters.transactions["load", "refused"] += 1
            log.warning("reporting the store's load failed: %s", error)
            return False
        counters.transactions["load", "done"] += 1
        counters.report_bytes += sum(map(cost, operations))
        return True

    def _rates(self, reports: Mapping[Partition, GroupReport], now: float) -> dict[Partition, float]:
        elapsed = max(now - self._measured_at, 1e-3)
        before, self._proposed = self._proposed, {p: report.proposed_bytes for p, report in reports.items()}
        self._measured_at = now
        return {
            partition: (proposed - before[partition]) / elapsed
            for partition, proposed in self._proposed.items()
            if proposed > before.get(partition, proposed)
        }
