"""Prometheus metrics of the sidecar; docs/sidecar.md lists every name, and a test compares the two."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from evenkeel_raft.agent.agent import Agent
from evenkeel_raft.agent.agent_status import AgentState
from evenkeel_raft.host.host import Host

__all__ = ["Metrics"]

_PREFIX = "evenkeel_raft_"


class Metrics(Collector):
    """Collects metrics from host and agent on each scrape."""

    def __init__(self, host: Host, agent: Agent) -> None:
        self._host = host
        self._agent = agent
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def render(self) -> bytes:
        """Return all metrics in the Prometheus text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        yield from self._of_replicas()
        yield from self._of_host()
        yield from self._of_log()
        yield from self._of_peers()
        yield from self._of_agent()

    def _of_replicas(self) -> Iterator[Metric]:
        reports = self._host.reports()
        yield _gauge("replicas", "Replicas on this store.", len(reports))
        yield _gauge(
            "leaders",
            "Replicas on this store that lead their group.",
            sum(report.leading for report in reports.values()),
        )
        yield _gauge("awake_groups", "Groups that are awake.", self._host.status.awake)
        yield _gauge("troubled_groups", "Groups with a problem.", sum(bool(r.problem) for r in reports.values()))
        filling = sum(len(report.filling) for report in reports.values())
        yield _gauge("filling_members", "Members that wait for or receive a snapshot from this store.", filling)

    def _of_host(self) -> Iterator[Metric]:
        counters = self._host.counters
        yield _gauge(
            "state_machine_connected", "1 if a state machine is connected.", self._host.status.machine_connected
        )
        yield _gauge(
            "state_machine_silent",
            "1 if the state machine is connected but does not respond.",
            self._host.status.machine_silent,
        )
        yield _gauge("disk_full", "1 if the log cannot be written because the disk is full.", bool(self._host.full))
        for name, about, value in (
            ("proposals", "Entries proposed for the state machine.", counters.proposals),
            ("proposed_bytes", "Bytes of the entries proposed.", counters.proposed_bytes),
            ("reads", "Read indexes requested.", counters.reads),
            ("applied_entries", "Entries sent to the state machine to apply.", counters.applied_entries),
            ("elections_won", "Elections won.", counters.elections_won),
            ("hand_overs", "Leadership transfers attempted.", counters.handed_over),
            ("snapshots_sent", "Snapshots delivered to other stores.", counters.snapshots_sent),
            ("snapshots_failed", "Snapshots that failed to be delivered.", counters.snapshots_failed),
            ("snapshots_restored", "Snapshots received from other stores and restored.", counters.snapshots_restored),
            ("snapshot_bytes", "Snapshot bytes sent.", counters.snapshot_bytes),
            ("wasted_snapshot_bytes", "Snapshot bytes sent for snapshots that were cancelled.", counters.wasted_bytes),
            ("compactions", "Log compactions of groups.", counters.compactions),
        ):
            yield _counter(name, about, value)
        yield _counters("refused_messages", "Raft messages rejected.", "reason", counters.refused_messages)
        yield _counters(
            "dropped_sockets", "State machine connections closed.", "reason", self._host.status.machine_drops
        )

    def _of_log(self) -> Iterator[Metric]:
        stats, retention = self._host.status.log_stats(), self._host.status.log_retention
        yield _counter("log_rounds", "Write rounds of the log, with one fsync each.", stats.rounds)
        times = self._host.status.round_times
        bounds = [*map(str, times.bounds), "+Inf"]
        yield HistogramMetricFamily(
            _PREFIX + "log_round_seconds",
            "Time until a write round was durable.",
            buckets=list(zip(bounds, accumulate(times.counts), strict=True)),
            sum_value=times.seconds,
        )
        yield _gauge("log_disk_bytes", "Bytes of the log on disk.", stats.disk_bytes)
        yield _gauge("log_live_bytes", "Bytes of the log that are still needed.", stats.live_bytes)
        yield _counter("log_moved_bytes", "Bytes copied to free log segments.", stats.moved_bytes)
        yield _gauge(
            "kept_logs_bytes",
            "Bytes of log entries of all groups held in memory.",
            retention.total_bytes,
        )
        yield _gauge(
            "kept_logs_too_long",
            "1 if the log entries in memory exceed their limit.",
            retention.over_limit,
        )

    def _of_peers(self) -> Iterator[Metric]:
        states = self._host.status.peer_states()
        connected = sum(state == "connected" for state in states.values())
        yield _gauge("peers", "Other stores known.", len(states))
        yield _gauge("connected_peers", "Other stores connected.", connected)
        peers = self._host.peers
        yield _gauge(
            "bytes_per_second", "Snapshot throttle in bytes per second; 0 if there is none.", peers.budget.rate or 0
        )
        yield _gauge(
            "snapshots_at_once",
            "Limit of snapshots created and sent concurrently.",
            self._host.status.snapshots_at_once,
        )
        limits = GaugeMetricFamily(
            _PREFIX + "table_bytes_per_second", "Copy throttle of a table in bytes per second.", labels=("table",)
        )
        for table, limit in peers.tables.limits.items():
            limits.add_metric((table,), limit)
        yield limits
        skews = GaugeMetricFamily(
            _PREFIX + "clock_skew_seconds",
            "Seconds that a peer's wall clock is ahead of this store's.",
            labels=("peer",),
        )
        for store, skew in peers.skews().items():
            skews.add_metric((store,), skew.seconds)
        yield skews
        ahead = self._host.clock_ahead()
        yield _gauge("clock_ahead_seconds", "Seconds that the wall clock is ahead of most stores'; 0 if close.", ahead)
        yield _counter("received_snapshot_bytes", "Snapshot bytes received.", peers.received.bytes)
        yield _counter("receiving_seconds", "Time spent receiving snapshots.", peers.received.seconds)
        yield _counters("dropped_connections", "Connections to other stores closed.", "reason", peers.drops)
        yield _counters("undelivered_messages", "Messages dropped before they were sent.", "reason", peers.undelivered)

    def _of_agent(self) -> Iterator[Metric]:
        status = self._agent.status()
        counters = status.counters
        following = status.state is AgentState.FOLLOWING
        yield _gauge("following_metastore", "1 if the agent follows the metastore.", following)
        yield _gauge("metastore_revision", "Metastore revision up to which the watch has delivered.", status.revision)
        yield _gauge("cluster_version", "The cluster version.", status.version)
        yield _gauge(
            "supported_version", "The newest cluster version that this store supports.", status.announced.newest
        )
        yield _gauge("watch_lag_seconds", "Seconds from the last write to its watch event.", counters.watch_lag)
        transactions = CounterMetricFamily(
            f"{_PREFIX}transactions", "Metastore transactions.", labels=("kind", "outcome")
        )
        for (kind, outcome), count in counters.transactions.items():
            transactions.add_metric((kind, outcome), count)
        yield transactions
        yield _counter("report_bytes", "Bytes written to the metastore to report load.", counters.report_bytes)
        yield _counters("configurations", "Configurations proposed to raft.", "kind", counters.proposals)
        yield _counters("failures", "Failed actions that are retried.", "what", counters.failures)
        yield _counter("replica_starts", "Replicas started.", counters.starts)
        yield _counter("replica_deletions", "Replicas deleted.", counters.deletions)
        yield _counter("metastore_sessions", "Metastore sessions started.", counters.sessions)


def _gauge(name: str, about: str, value: float) -> Metric:
    return GaugeMetricFamily(_PREFIX + name, about, value=float(value))


def _counter(name: str, about: str, value: float) -> Metric:
    return CounterMetricFamily(_PREFIX + name, about, value=float(value))


def _counters(name: str, about: str, label: str, counts: object) -> Metric:
    family = CounterMetricFamily(_PREFIX + name, about, labels=(label,))
    for key, count in dict(counts).items():  # type: ignore[call-overload]
        family.add_metric((str(key),), count)
    return family
