"""Retention of logs: per group, and for all groups of a store together."""

from __future__ import annotations

import msgspec

from evenkeel.protocol.group_configuration import Configuration
from evenkeel.protocol.keys import group_number
from evenkeel.protocol.replica_decision import Start
from evenkeel_raft.host.host_settings import HostSettings
from evenkeel_raft.host.log_retention import LogRetention
from evenkeel_raft.shared.raft_groups import Partition
from evenkeel_reference.reference_entries import Upsert, encode_entry
from tests.raft_host.support import ORDERS, QUICK, Cluster, NewCluster

ALLOWED = HostSettings(keep_log_bytes=1000, keep_logs_bytes=10_000, max_log_bytes=50_000)
TOGETHER = msgspec.structs.replace(QUICK, keep_log_bytes=10_000, keep_logs_bytes=40_000)


def test_within_the_limit_groups_keep_their_log() -> None:
    """Within the total limit, only the limit per group applies."""
    retention = LogRetention(ALLOWED)
    for total, groups in ((0, 0), (10_000, 1), (10_000, 1_000_000)):
        retention.update(total, groups)
        assert (retention.over_limit, retention.keep_bytes, retention.max_bytes) == (False, 1000, 50_000)


def test_many_groups_keep_their_share() -> None:
    """Beyond the total limit each group keeps its share; logs of twice their share are within the limit."""
    retention = LogRetention(ALLOWED)
    retention.update(10_001, 100)
    assert (retention.total_bytes, retention.over_limit, retention.keep_bytes) == (10_001, True, 50)
    assert 2 * retention.keep_bytes * 100 <= 10_000
    retention.update(10_001, 2)
    assert retention.keep_bytes == 1000
    retention.update(9_999, 100)
    assert (retention.over_limit, retention.keep_bytes) == (False, 1000)


def test_needed_entries_are_dropped_last() -> None:
    """Entries that a member needs stay until the logs exceed four times the total limit."""
    retention = LogRetention(ALLOWED)
    retention.update(40_000, 100)
    assert retention.max_bytes == 50_000
    retention.update(40_001, 100)
    assert retention.max_bytes == 200


async def test_sleeping_groups_are_compacted(new_cluster: NewCluster) -> None:
    """Sleeping groups are compacted when all logs together are too long."""
    cluster = await new_cluster("a", settings=TOGETHER)
    member = cluster["a"]
    partitions = [ORDERS, *(Partition("orders.1", number) for number in range(1, 4))]
    for partition in partitions:
        start = Start(member.peer(), Configuration((member.peer(),)))
        await member.host.start(partition, start)
    await cluster.until(lambda: all(report.leading for report in member.host.reports().values()))
    assert member.end is not None
    alone = []
    for partition in partitions:
        for number in range(60):
            await cluster.until(member.end.propose(group_number(*partition), 1, _upsert(number)).done)
        await cluster.until(lambda: not member.host.status.awake)
        alone.append(member.host.reports()[partition].log_bytes)
    assert alone[0] < 2 * TOGETHER.keep_log_bytes
    await cluster.until(lambda: _kept(cluster) < TOGETHER.keep_logs_bytes)
    assert member.host.reports()[ORDERS].log_bytes < alone[0]
    await cluster.until(lambda: not member.host.status.log_retention.over_limit)
    assert 0 < member.host.status.log_retention.total_bytes <= TOGETHER.keep_logs_bytes
    assert not member.host.status.awake
    await member.stop()
    await member.start()
    assert len(member.host.running()) == len(partitions)


def _upsert(number: int) -> bytes:
    return encode_entry(Upsert("test", number, b"k%d" % number, b"v" * 200))


def _kept(cluster: Cluster) -> int:
    return sum(report.log_bytes for report in cluster["a"].host.reports().values())
