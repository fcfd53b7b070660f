"""Samples of the table."""

from __future__ import annotations

from demo.watch import counter, sample_of
from evenkeel.model.partitionassignment import PartitionStatus, PeerStatus

METRICS = """\
# HELP evenkeel_raft_snapshot_bytes_total Bytes of snapshots sent.
# TYPE evenkeel_raft_snapshot_bytes_total counter
evenkeel_raft_snapshot_bytes_total 1.048576e+06
evenkeel_raft_wasted_snapshot_bytes_total 7.0
"""


def peers(*stores: str) -> tuple[PeerStatus, ...]:
    return tuple(PeerStatus(store=store, role="Voter") for store in stores)


def test_counters() -> None:
    """Counters match by full name; an absent one is zero."""
    assert counter(METRICS, "evenkeel_raft_snapshot_bytes_total") == 1 << 20
    assert counter(METRICS, "evenkeel_raft_snapshot_bytes") == 0


def test_sample() -> None:
    """A sample counts leaders, replicas, changes and bytes by store, including stores without replicas."""
    partitions = [
        PartitionStatus(partition=0, stable=peers("a", "b"), leader="a"),
        PartitionStatus(partition=1, stable=peers("a"), pending=(peers("a", "c"),), leader="a"),
        PartitionStatus(partition=2, stable=peers("b"), planned=peers("c")),
    ]
    sample = sample_of(3.5, ["a", "b", "c"], partitions, {"a": METRICS})
    assert sample.leaders == {"a": 2, "b": 0, "c": 0}
    assert sample.replicas == {"a": 2, "b": 2, "c": 0}
    assert (sample.moving, sample.leaderless) == (2, 1)
    assert (sample.copied, sample.wasted) == ({"a": 1 << 20}, {"a": 7})
