"""What Prometheus reads. docs/store.md lists every name; a test holds the two together."""

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
    """Reads the machine when asked."""

    def __init__(self, state_machine: StoreStateMachine, sidecar: StoreSocket) -> None:
        self._machine = state_machine
        self._sidecar = sidecar
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def render(self) -> bytes:
        """In Prometheus' text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Every metric there is."""
        yield from self._of_groups()
        yield from self._of_disk()
        yield from self._of_work()

    def _of_groups(self) -> Iterator[Metric]:
        state_machine = self._machine
        groups = state_machine.groups_of("")
        yield _gauge("sidecar_connected", "1 if the sidecar is there.", self._sidecar.connected)
        yield _gauge("partitions", "Partitions that are open here.", len(groups))
        yield _gauge(
            "leaders", "Partitions that are led here.", sum(state_machine.role_of(g.number).leader for g in groups)
        )
        yield _gauge("damaged_partitions", "Partitions to be restored.", sum(bool(g.metadata.damage) for g in groups))
        differing = sum(bool(g.doubt) for g in groups)
        yield _gauge("differing_partitions", "Partitions whose rows are not as other replicas have them.", differing)
        yield _gauge("rows", "About how many rows there are.", sum(group.about_rows for group in groups))
        yield _gauge("unfolded_rows", "How many of them are in a log.", sum(group.unfolded for group in groups))
        yield _gauge("pins", "Indexes that are kept readable by a pin.", sum(len(g.metadata.pins) for g in groups))

    def _of_disk(self) -> Iterator[Metric]:
        database, directory = self._machine.engine.database, self._machine.directory
        yield _gauge("database_bytes", "What the database takes on the disk.", database.bytes)
        yield _gauge("wal_bytes", "What of it a start would have to replay.", database.wal_bytes)
        yield _gauge("disk_free_bytes", "What is left on the disk.", directory.free())
        yield _gauge("disk_full", "1 if nothing can be written for lack of space.", bool(directory.full()))

    def _of_work(self) -> Iterator[Metric]:
        counters = self._machine.counters
        for name, about in (
            ("transactions", "Transactions in which entries were applied."),
            ("applied_entries", "Entries applied."),
            ("applied_rows", "Rows in them."),
            ("folds", "Times a partition was folded."),
            ("folded_rows", "Rows folded."),
            ("snapshots", "Snapshots written."),
            ("restores", "Snapshots restored."),
            ("reopenings", "Times the database was opened again after an error."),
            ("comparisons", "Times the rows of a partition were compared with the leader's."),
            ("condemnations", "Partitions given up because most replicas had other rows."),
            ("healed_replicas", "Replicas of partitions led here that had other rows than most, and were built anew."),
            ("lost_transactions", "Transactions that a damaged log of the database had lost, applied again."),
            ("read_rows", "Rows sent to clients."),
            ("put_batches", "Batches taken from clients."),
        ):
            yield _counter(name, about, counters[name])
        calls = CounterMetricFamily(f"{_PREFIX}calls", "Flight calls, by their end.", labels=("method", "outcome"))
        for (method, outcome), count in list(self._machine.calls.items()):
            calls.add_metric((method, outcome), count)
        yield calls
        drops = CounterMetricFamily(
            f"{_PREFIX}dropped_sockets", "Connections to the sidecar given up.", labels=("reason",)
        )
        for reason, count in list(self._sidecar.drops.items()):
            drops.add_metric((reason,), count)
        yield drops


def _gauge(name: str, about: str, value: float) -> Metric:
    return GaugeMetricFamily(_PREFIX + name, about, value=float(value))


def _counter(name: str, about: str, value: float) -> Metric:
    return CounterMetricFamily(_PREFIX + name, about, value=float(value))
