"""What Prometheus reads. docs/sidecar.md lists every name; a test holds the two together."""

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
    """Reads host and agent when asked."""

    def __init__(self, host: Host, agent: Agent) -> None:
        self._host = host
        self._agent = agent
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def render(self) -> bytes:
        """In Prometheus' text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Every metric there is."""
        yield from self._of_replicas()
        yield from self._of_host()
        yield from self._of_log()
        yield from self._of_peers()
        yield from self._of_agent()

    def _of_replicas(self) -> Iterator[Metric]:
        reports = self._host.reports()
        yield _gauge("replicas", "Replicas on this store.", len(reports))
        yield _gauge("leaders", "Replicas that lead.", sum(report.leading for report in reports.values()))
        yield _gauge("awake_groups", "Groups that are not asleep.", self._host.awake)
        yield _gauge("troubled_groups", "Groups with a problem.", sum(bool(r.problem) for r in reports.values()))
        filling = sum(len(report.filling) for report in reports.values())
        yield _gauge("filling_members", "Members being filled by snapshots from here, or silent so far.", filling)

    def _of_host(self) -> Iterator[Metric]:
        tally = self._host.tally
        yield _gauge("state_machine_connected", "1 if a state machine is there.", self._host.machine_connected)
        yield _gauge("state_machine_silent", "1 if it is there and does not answer.", self._host.machine_silent)
        yield _gauge("disk_full", "1 if nothing can be logged for lack of space.", bool(self._host.full))
        for name, about, value in (
            ("proposals", "Entries logged for the state machine.", tally.proposals),
            ("proposed_bytes", "Bytes of them.", tally.proposed_bytes),
            ("reads", "Read indexes asked for.", tally.reads),
            ("applied_entries", "Entries handed to the state machine.", tally.applied_entries),
            ("elections_won", "Leaderships gained.", tally.elections_won),
            ("hand_overs", "Leaderships handed over, or tried to.", tally.handed_over),
            ("snapshots_sent", "Snapshots that arrived at other stores.", tally.snapshots_sent),
            ("snapshots_failed", "Snapshots that did not.", tally.snapshots_failed),
            ("snapshots_restored", "Snapshots from other stores, restored.", tally.snapshots_restored),
            ("snapshot_bytes", "Bytes of snapshots sent.", tally.snapshot_bytes),
            ("wasted_snapshot_bytes", "Those of snapshots that were called off.", tally.wasted_bytes),
            ("compactions", "Times a group's log was cut.", tally.compactions),
        ):
            yield _counter(name, about, value)
        yield _counters("refused_messages", "Messages for no replica here.", "reason", tally.refused_messages)
        yield _counters("dropped_sockets", "State machines hung up on.", "reason", self._host.machine_drops)

    def _of_log(self) -> Iterator[Metric]:
        stats = self._host.log_stats()
        yield _counter("log_rounds", "Rounds written: one fsync each.", stats.rounds)
        times = self._host.round_times
        bounds = [*map(str, times.bounds), "+Inf"]
        yield HistogramMetricFamily(
            _PREFIX + "log_round_seconds",
            "Until a round was durable.",
            buckets=list(zip(bounds, accumulate(times.counts), strict=True)),
            sum_value=times.seconds,
        )
        yield _gauge("log_disk_bytes", "What the log takes on the disk.", stats.disk_bytes)
        yield _gauge("log_live_bytes", "What of it is needed.", stats.live_bytes)
        yield _counter("log_moved_bytes", "What was copied to free segments.", stats.moved_bytes)
        yield _gauge("kept_logs_bytes", "Entries of all groups, which are in memory.", self._host.logs.total)
        yield _gauge("kept_logs_too_long", "1 if that is more than there may be.", self._host.logs.tight)

    def _of_peers(self) -> Iterator[Metric]:
        states = self._host.peer_states()
        connected = sum(state == "connected" for state in states.values())
        yield _gauge("peers", "Other stores known.", len(states))
        yield _gauge("connected_peers", "Other stores connected.", connected)
        peers = self._host.peers
        yield _gauge("bytes_per_second", "Limit for snapshots; 0 where there is none.", peers.budget.rate or 0)
        yield _gauge("snapshots_at_once", "Snapshots made and sent at a time.", self._host.snapshots_at_once)
        limits = GaugeMetricFamily(_PREFIX + "table_bytes_per_second", "Limits of tables.", labels=("table",))
        for table, limit in peers.tables.limits.items():
            limits.add_metric((table,), limit)
        yield limits
        skews = GaugeMetricFamily(
            _PREFIX + "clock_skew_seconds",
            "How far another store's wall clock is ahead of this one's.",
            labels=("peer",),
        )
        for store, skew in peers.skews().items():
            skews.add_metric((store,), skew.seconds)
        yield skews
        ahead = self._host.clock_ahead()
        yield _gauge("clock_ahead_seconds", "How far the wall clock is ahead of most stores'; 0 if it is close.", ahead)
        yield _counter("received_snapshot_bytes", "Bytes of snapshots that came in.", peers.received.bytes)
        yield _counter("receiving_seconds", "Time in which snapshots came in.", peers.received.seconds)
        yield _counters("dropped_connections", "Connections of stores given up.", "reason", peers.drops)
        yield _counters("undelivered_messages", "Messages never sent.", "reason", peers.undelivered)

    def _of_agent(self) -> Iterator[Metric]:
        status = self._agent.status()
        counters = status.counters
        following = status.state is AgentState.FOLLOWING
        yield _gauge("following_metastore", "1 if the metastore is followed.", following)
        yield _gauge("metastore_revision", "Up to which it was seen.", status.revision)
        yield _gauge("cluster_version", "The cluster version.", status.version)
        yield _gauge(
            "supported_version", "The newest cluster version that this store supports.", status.announced.newest
        )
        yield _gauge("watch_lag_seconds", "From a write to its event, the last time.", counters.watch_lag)
        transactions = CounterMetricFamily(
            f"{_PREFIX}transactions", "Metastore transactions.", labels=("kind", "outcome")
        )
        for (kind, outcome), count in counters.transactions.items():
            transactions.add_metric((kind, outcome), count)
        yield transactions
        yield _counter("report_bytes", "Written to the metastore to report load.", counters.report_bytes)
        yield _counters("configurations", "Configurations logged.", "kind", counters.proposals)
        yield _counters("failures", "What has to be tried again.", "what", counters.failures)
        yield _counter("replica_starts", "Replicas started.", counters.starts)
        yield _counter("replica_deletions", "Replicas deleted.", counters.deletions)
        yield _counter("metastore_sessions", "Times the metastore was listed anew.", counters.sessions)


def _gauge(name: str, about: str, value: float) -> Metric:
    return GaugeMetricFamily(_PREFIX + name, about, value=float(value))


def _counter(name: str, about: str, value: float) -> Metric:
    return CounterMetricFamily(_PREFIX + name, about, value=float(value))


def _counters(name: str, about: str, label: str, counts: object) -> Metric:
    family = CounterMetricFamily(_PREFIX + name, about, labels=(label,))
    for key, count in dict(counts).items():  # type: ignore[call-overload]
        family.add_metric((str(key),), count)
    return family
