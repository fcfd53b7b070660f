"""Percentiles, time windows, and counters that restart with their process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct

from demo.facts import Kind, Operation, Sample, Step

__all__ = ["Latency", "by_second", "disturbed", "growth", "latency", "moves_done", "quantile", "quiet", "within"]


class Latency(Struct, frozen=True):
    """Latencies in seconds."""

    count: int
    p50: float
    p99: float
    longest: float


def quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least this share of the values does not exceed; 0 without values."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]


def latency(operations: Iterable[Operation], kind: Kind) -> Latency:
    """Summarise the operations of a kind."""
    times = [operation.seconds for operation in operations if operation.kind == kind]
    return Latency(len(times), quantile(times, 0.5), quantile(times, 0.99), max(times, default=0.0))


def within(operations: Iterable[Operation], steps: Iterable[Step]) -> list[Operation]:
    """Return the operations that began in one of the steps."""
    windows = [(step.began, step.ended) for step in steps]
    return [operation for operation in operations if any(began <= operation.began < ended for began, ended in windows)]


def disturbed(steps: Iterable[Step]) -> list[Step]:
    """Return the steps in which replicas move or a store is killed."""
    return [step for step in steps if step.disturbs]


def quiet(steps: Sequence[Step], *, title: str) -> list[Step]:
    """Return the baseline step, which has this title."""
    return [step for step in steps if step.title == title]


def by_second(
    operations: Iterable[Operation], kind: Kind, figure: Callable[[Sequence[float]], float]
) -> list[tuple[float, float]]:
    """Return a statistic for each second in which operations of a kind began."""
    buckets: dict[int, list[float]] = {}
    for operation in operations:
        if operation.kind == kind:
            buckets.setdefault(int(operation.began), []).append(operation.seconds)
    return [(second + 0.5, figure(found)) for second, found in sorted(buckets.items())]


def growth(readings: Iterable[Mapping[str, int]]) -> list[int]:
    """Return the cumulative growth of counters, reading by reading;

    a counter that decreased has restarted from zero.
    """
    last: dict[str, int] = {}
    total, totals = 0, []
    for reading in readings:
        for name, value in reading.items():
            before = last.get(name, 0)
            total += value - before if value >= before else value
            last[name] = value
        totals.append(total)
    return totals


def moves_done(samples: Sequence[Sample]) -> list[tuple[float, float]]:
    """Return the cumulative number of replicas added or removed, from the changes of the stores' replica counts."""
    points: list[tuple[float, float]] = []
    total = 0
    before: Mapping[str, int] | None = None
    for sample in samples:
        if before is not None:
            stores = {*before, *sample.replicas}
            total += sum(abs(sample.replicas.get(store, 0) - before.get(store, 0)) for store in stores)
        points.append((sample.at, float(total)))
        before = sample.replicas
    return points
