"""Prometheus metrics. docs/store.md lists every name; a test compares the two."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from evenkeel.wire.store_socket import StoreSocket
from evenkeel_store.state_machine.store_state_machine import StoreStateMachine

__all__ = ["Metrics"]

_PREFIX = "evenkeel_store_"


class Metrics(Collector):
    """Collects the metrics of a store when they are scraped."""

    def __init__(self, state_machine: StoreStateMachine, sidecar: StoreSocket) -> None:
        self._state_machine = state_machine
        self._sidecar = sidecar
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def render(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        yield from self._group_metrics()
        yield from self._disk_metrics()
        yield from self._work_metrics()

    def _group_metrics(self) -> Iterator[Metric]:
        open_groups = self._state_machine.groups
        groups = open_groups.of_table()
        yield _gauge("sidecar_connected", "1 if the sidecar is connected.", self._sidecar.connected)
        yield _gauge("partitions", "Open partitions.", len(groups))
        yield _gauge("leaders", "Partitions that this store leads.", len(open_groups.led()))
        yield _gauge(
            "damaged_partitions",
            "Partitions whose rows are damaged and must be restored.",
            sum(bool(g.metadata.damage) for g in groups),
        )
        differing = sum(bool(g.doubt) for g in groups)
        yield _gauge("differing_partitions", "Partitions whose rows differ from other replicas.", differing)
        yield _gauge("rows", "Estimated number of rows.", sum(group.estimated_rows for group in groups))
        yield _gauge(
            "unfolded_rows", "Rows in the log that are not folded yet.", sum(group.unfolded for group in groups)
        )
        yield _gauge("pins", "Pins.", sum(len(g.metadata.pins) for g in groups))

    def _disk_metrics(self) -> Iterator[Metric]:
        database, directory = self._state_machine.engine.database, self._state_machine.directory
        yield _gauge("database_bytes", "Size of the database and its write-ahead log.", database.bytes)
        yield _gauge("wal_bytes", "Size of the write-ahead log, which a start has to replay.", database.wal_bytes)
        yield _gauge("disk_free_bytes", "Free bytes on the disk.", directory.free())
        yield _gauge("disk_full", "1 if writes are refused because the disk is full.", bool(directory.full()))

    def _work_metrics(self) -> Iterator[Metric]:
        counters = self._state_machine.counters
        for name, help_text in (
            ("transactions", "Transactions in which entries were applied."),
            ("applied_entries", "Entries applied."),
            ("applied_rows", "Rows in applied entries."),
            ("folds", "Folds of a partition."),
            ("folded_rows", "Rows folded."),
            ("snapshots", "Snapshots written."),
            ("restores", "Snapshots restored."),
            ("reopenings", "Times the database was reopened after an error."),
            ("comparisons", "Comparisons of a partition's rows with the leader's."),
            ("condemnations", "Partitions discarded because their rows differed from the majority."),
            ("healed_replicas", "Replicas of partitions led here that differed from the majority and were rebuilt."),
            ("lost_transactions", "Transactions lost to a damaged write-ahead log and applied again."),
            ("read_rows", "Rows sent to clients."),
            ("put_batches", "Batches received from clients."),
        ):
            yield _counter(name, help_text, counters[name])
        calls = CounterMetricFamily(
            f"{_PREFIX}calls", "Flight calls by method and outcome.", labels=("method", "outcome")
        )
        for (method, outcome), count in list(self._state_machine.calls.items()):
            calls.add_metric((method, outcome), count)
        yield calls
        drops = CounterMetricFamily(
            f"{_PREFIX}dropped_sockets", "Connections to the sidecar that were dropped, by reason.", labels=("reason",)
        )
        for reason, count in list(self._sidecar.drops.items()):
            drops.add_metric((reason,), count)
        yield drops


def _gauge(name: str, help_text: str, value: float) -> Metric:
    return GaugeMetricFamily(_PREFIX + name, help_text, value=float(value))


def _counter(name: str, help_text: str, value: float) -> Metric:
    return CounterMetricFamily(_PREFIX + name, help_text, value=float(value))
