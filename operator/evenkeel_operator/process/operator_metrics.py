"""What Prometheus reads. docs/operator.md lists every name; a test holds the two together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from evenkeel_operator.process.operator_health import OperatorHealth

__all__ = ["Metrics"]

_PREFIX: Final = "evenkeel_operator_"
_GAUGES: Final = {
    "store_clusters": "StoreClusters that are served.",
    "tables": "Tables that are served.",
    "dropped_tables": "Deleted tables whose data is kept.",
    "queued": "Objects that wait to be looked at, or are looked at.",
    "waiting_statuses": "Statuses that wait to be written.",
    "controllers": "Controllers that run, one for each StoreCluster.",
    "busy_controllers": "Controllers that have something to look at now.",
    "troubled_controllers": "Controllers that can do nothing at the moment.",
}
_COUNTERS: Final = {
    "written_statuses": "Statuses written.",
    "failed_looks": "Looks at an object that failed.",
}


class Metrics(Collector):
    """Reads the operator when asked."""

    def __init__(self, health: OperatorHealth, figures: Callable[[], dict[str, float]]) -> None:
        """`figures` has what only a leader knows; it is empty elsewhere."""
        self._vitals = health
        self._figures = figures
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def render(self) -> bytes:
        """In Prometheus' text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Every metric there is."""
        report = self._vitals.report()
        for name, about, value in (
            ("leading", "1 if this replica leads.", report.leading),
            ("etcd_reachable", "1 if etcd answers.", not report.etcd),
            ("etcd_full", "1 if etcd refuses writes for lack of space.", bool(report.etcd_full)),
            ("api_server_reachable", "1 if the API server answers.", not report.api_server),
            ("crds_match", "1 if the CRDs are of this release.", None if report.crds is None else not report.crds),
            ("oldest_queued_seconds", "How long the longest-waiting object has waited.", report.oldest_seconds),
            ("last_watch_event_seconds", "How long ago a watch told something.", report.seconds_since_watch_event),
            ("last_sweep_seconds", "How long ago everything was listed.", report.seconds_since_sweep),
            ("deaf_sweeps", "Sweeps in a row that found what no watch has told.", report.deaf),
        ):
            if value is not None:
                yield GaugeMetricFamily(_PREFIX + name, about, value=float(value))
        yield CounterMetricFamily(
            _PREFIX + "etcd_reliefs", "Times space was freed in the bundled etcd.", value=float(report.etcd_reliefs)
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
        for (verb, kind, code), count in list(self._vitals.requests.items()):
            requests.add_metric((verb, kind, str(code)), count)
        yield requests
        events = CounterMetricFamily(f"{_PREFIX}watch_events", "What watches have told.", labels=("kind",))
        for seen, count in list(self._vitals.events.items()):
            events.add_metric((seen.plural,), count)
        yield events
