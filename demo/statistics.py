"""Percentiles, windows of time, and counters that begin anew when their process does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct

from demo.facts import Kind, Operation, Sample, Step

__all__ = ["Latency", "by_second", "disturbed", "growth", "latency", "moves_done", "quantile", "quiet", "within"]


class Latency(Struct, frozen=True):
    """How long operations took, in seconds."""

    count: int
    p50: float
    p99: float
    longest: float


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest of the values that at least this share of them does not exceed; 0 where there is none."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]


def latency(operations: Iterable[Operation], kind: Kind) -> Latency:
    """Summarise the operations of a kind."""
    times = [operation.seconds for operation in operations if operation.kind == kind]
    return Latency(len(times), quantile(times, 0.5), quantile(times, 0.99), max(times, default=0.0))


def within(operations: Iterable[Operation], steps: Iterable[Step]) -> list[Operation]:
    """Operations that began in one of the steps."""
    windows = [(step.began, step.ended) for step in steps]
    return [operation for operation in operations if any(began <= operation.began < ended for began, ended in windows)]


def disturbed(steps: Iterable[Step]) -> list[Step]:
    """Steps in which something moves or dies."""
    return [step for step in steps if step.disturbs]


def quiet(steps: Sequence[Step], *, title: str) -> list[Step]:
    """The step of that title: nothing else happens in it."""
    return [step for step in steps if step.title == title]


def by_second(
    operations: Iterable[Operation], kind: Kind, figure: Callable[[Sequence[float]], float]
) -> list[tuple[float, float]]:
    """A figure for each second in which operations of a kind began."""
    buckets: dict[int, list[float]] = {}
    for operation in operations:
        if operation.kind == kind:
            buckets.setdefault(int(operation.began), []).append(operation.seconds)
    return [(second + 0.5, figure(found)) for second, found in sorted(buckets.items())]


def growth(readings: Iterable[Mapping[str, int]]) -> list[int]:
    """What counters have grown by in all, reading by reading; one that shrank has begun anew, from nothing."""
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
    """Replicas that have come or gone in all, by time: by how much the stores' numbers of replicas have changed."""
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
