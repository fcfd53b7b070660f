"""Prometheus metrics of the operator; docs/operator.md lists every name, which a test verifies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from evenkeel_operator.kinds import KINDS
from evenkeel_operator.process.operator_health import OperatorHealth

__all__ = ["OperatorMetrics"]

_PREFIX: Final = "evenkeel_operator_"
_GAUGES: Final = {
    **{found.reconciled.gauge: f"Number of {found.kind.name}s." for found in KINDS if found.reconciled is not None},
    "dropped_tables": "Deleted tables whose data is kept.",
    "queued": "Objects that are due or being reconciled.",
    "waiting_statuses": "Statuses that are not written yet.",
    "controllers": "Running controllers, one for each StoreCluster.",
    "busy_controllers": "Controllers with work to do.",
    "troubled_controllers": "Controllers that cannot work at the moment.",
}
_COUNTERS: Final = {
    "written_statuses": "Statuses written.",
    "failed_looks": "Failed reconciliations.",
}


class OperatorMetrics(Collector):
    """Collects the metrics at every scrape."""

    def __init__(self, health: OperatorHealth, figures: Callable[[], dict[str, float]]) -> None:
        """`figures` returns the values that only a leader has; it is empty on other replicas."""
        self._health = health
        self._figures = figures
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def render(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Return every metric."""
        report = self._health.report()
        for name, about, value in (
            ("leading", "1 if this replica leads.", report.leading),
            ("etcd_reachable", "1 if etcd answers.", not report.etcd),
            ("etcd_full", "1 if etcd rejects writes for lack of space.", bool(report.etcd_full)),
            ("api_server_reachable", "1 if the API server answers.", not report.api_server),
            (
                "crds_match",
                "1 if the CRDs are those of this release.",
                None if report.crds is None else not report.crds,
            ),
            (
                "oldest_queued_seconds",
                "Seconds that the oldest object has been due.",
                report.oldest_seconds,
            ),
            ("last_watch_event_seconds", "Seconds since a watch event.", report.seconds_since_watch_event),
            ("last_sweep_seconds", "Seconds since the last sweep.", report.seconds_since_sweep),
            ("deaf_sweeps", "Consecutive sweeps that found changes that no watch delivered.", report.deaf),
        ):
            if value is not None:
                yield GaugeMetricFamily(_PREFIX + name, about, value=float(value))
        yield CounterMetricFamily(
            _PREFIX + "etcd_reliefs",
            "Times the operator freed space in the bundled etcd.",
            value=float(report.etcd_reliefs),
        )
        figures = self._figures()
        for name, about in _GAUGES.items():
            yield GaugeMetricFamily(_PREFIX + name, about, value=figures.get(name, 0.0))
        for name, about in _COUNTERS.items():
            yield CounterMetricFamily(_PREFIX + name, about, value=figures.get(name, 0.0))
        yield from self._traffic()

    def _traffic(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            f"{_PREFIX}api_requests", "Requests to the API server.", labels=("verb", "kind", "code")
        )
        for (verb, kind, code), count in list(self._health.requests.items()):
            requests.add_metric((verb, kind, str(code)), count)
        yield requests
        events = CounterMetricFamily(f"{_PREFIX}watch_events", "Watch events.", labels=("kind",))
        for seen, count in list(self._health.events.items()):
            events.add_metric((seen.plural,), count)
        yield events
