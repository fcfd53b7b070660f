"""Hosts with real disks, sockets and state machines: groups replicate, move, sleep and recover."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

import pytest

from evenkeel.protocol.records import Role
from evenkeel.protocol.replica_decision import Start
from evenkeel.wire.socket_messages import Apply, ReadAt
from evenkeel_reference.reference_entries import Upsert, encode_entry
from tests.raft_host.support import ORDERS, SHORT_LOG, NewCluster


async def test_a_group_replicates(new_cluster: NewCluster) -> None:
    """All stores apply what the leader commits, and reads at any store are linearizable."""
    cluster = await new_cluster("a", "b", "c")
    await cluster.begin("a", "b", "c")
    written = await cluster.write(x="1", y="2")
    await cluster.equal("abc", {"x": "1", "y": "2"})
    for name in "abc":
        outcome = await cluster.read_index(cluster[name])
        assert isinstance(outcome, ReadAt)
        assert outcome.index >= written[-1].index


async def test_a_replica_is_added_and_another_removed(new_cluster: NewCluster) -> None:
    """A new replica gets the state and votes; the leader excludes the removed one, and its data is deleted."""
    cluster = await new_cluster("a", "b", "c", "d")
    await cluster.begin("a", "b", "c")
    await cluster.write(x="1")
    gone = next(name for name in "abc" if cluster[name] is not cluster.leading())
    kept = [name for name in "abc" if name != gone]
    excluded = await cluster[gone].host.ask_leader(ORDERS, (gone, 1), "abc")
    assert not excluded
    await cluster["d"].host.start(ORDERS, Start(cluster["d"].peer(2)))
    await cluster.change(*(cluster[name].peer() for name in kept), cluster["d"].peer(2), token=7)
    await cluster.write(y="2")
    await cluster.equal([*kept, "d"], {"x": "1", "y": "2"})
    assert await cluster[gone].host.ask_leader(ORDERS, (gone, 1), "abcd")
    await cluster[gone].host.destroy(ORDERS, (gone, 1))
    assert cluster[gone].host.running() == {}
    assert cluster[gone].host.newest_held(ORDERS) == 1
    assert await cluster[gone].state() == {}


async def test_followers_apply_in_batches(new_cluster: NewCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower sends entries to its state machine in batches; a read flushes the batch."""
    cluster = await new_cluster("a", "b", "c")
    await cluster.begin("a", "b", "c")
    await cluster.write(x="0")
    await cluster.equal("abc", {"x": "0"})
    leader = cluster.leading()
    follower = next(member for member in cluster.members.values() if member is not leader)
    assert follower.machine is not None
    asked: list[Apply] = []
    apply = follower.machine.apply

    def noted(group: int, replica: int, request: Apply, answer: Callable[..., None]) -> None:
        asked.append(request)
        apply(group, replica, request, answer)

    monkeypatch.setattr(follower.machine, "apply", noted)
    for number in range(10):
        # Virtual time does not advance here.
        future = cluster.propose(leader, encode_entry(Upsert("", 0, b"x", b"%d" % number)))
        await future
    assert asked == []
    await cluster.read_index(follower)
    assert sum(len(request.entries) for request in asked) >= 9
    assert len(asked) <= 2
    await cluster.equal("abc", {"x": "9"})


async def test_restarted_hosts_continue(new_cluster: NewCluster) -> None:
    """All hosts restart and continue without being given their peers' addresses."""
    cluster = await new_cluster("a", "b", "c")
    await cluster.begin("a", "b", "c")
    await cluster.write(x="1")
    for member in cluster.members.values():
        await member.stop()
    for member in cluster.members.values():
        await member.start()
    await cluster.write(y="2")
    await cluster.equal("abc", {"x": "1", "y": "2"})


async def test_a_leader_without_state_machine_hands_over(new_cluster: NewCluster) -> None:
    """A leader hands over when its state machine stops; after its return it has missed nothing."""
    cluster = await new_cluster("a", "b", "c")
    await cluster.begin("a", "b", "c")
    await cluster.write(x="1")
    first = cluster.leading()
    await first.stop_machine()
    await cluster.until(lambda: cluster.leader() is not None)
    assert cluster.leading() is not first
    await cluster.write(y="2")
    await first.start_state_machine()
    await cluster.equal("abc", {"x": "1", "y": "2"})


async def test_a_member_beyond_the_log_gets_a_snapshot(new_cluster: NewCluster) -> None:
    """A member that needs compacted entries gets a snapshot, then the rest of the log."""
    cluster = await new_cluster("a", "b", "c", "d", settings=SHORT_LOG)
    await cluster.begin("a", "b", "c")
    values = {f"k{number}": "v" * 200 for number in range(60)}
    await cluster.write(**values)
    leader = cluster.leading()
    await cluster.until(lambda: leader.host.reports()[ORDERS].log_bytes < 8000)
    assert leader.host.counters.compactions
    await cluster["d"].host.start(ORDERS, Start(cluster["d"].peer(2, Role.LEARNER)))
    await cluster.change(*(cluster[name].peer() for name in "abc"), cluster["d"].peer(2, Role.LEARNER), token=3)
    await cluster.write(last="1")
    await cluster.equal("abcd", {**values, "last": "1"})
    assert cluster["d"].host.counters.snapshots_restored == 1
    await cluster.until(lambda: sum(cluster[name].host.counters.snapshots_sent for name in "abc") == 1)
    assert not list((cluster["d"].directory / "raft" / "inbox").iterdir())
    await cluster.until(lambda: not list((leader.directory / "raft" / "outbox").iterdir()))


async def test_a_growing_log_is_compacted_at_once(new_cluster: NewCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Applied entries are compacted as the log grows, not only in the sweep."""
    monkeypatch.setattr("evenkeel_raft.host.host_maintenance._SWEEP_TICKS", 1 << 62)
    cluster = await new_cluster("a", "b", "c", settings=SHORT_LOG)
    await cluster.begin("a", "b", "c")
    for number in range(60):
        await cluster.write(**{f"k{number}": "v" * 200})
    await cluster.until(lambda: all(cluster[name].host.reports()[ORDERS].log_bytes < 8000 for name in "abc"))
    assert all(cluster[name].host.counters.compactions > 1 for name in "abc")


async def test_an_empty_state_machine_gets_a_snapshot(new_cluster: NewCluster) -> None:
    """A store that lost its state and kept its log gets a snapshot from its leader."""
    cluster = await new_cluster("a", "b", "c", settings=SHORT_LOG)
    await cluster.begin("a", "b", "c")
    values = {f"k{number}": "v" * 200 for number in range(60)}
    await cluster.write(**values)
    poor = next(member for member in cluster.members.values() if member is not cluster.leading())
    await cluster.until(lambda: poor.host.reports()[ORDERS].log_bytes < 8000)
    await poor.stop_machine()
    for name in ("state.db", "state.db-wal", "state.db-shm"):
        (poor.directory / "state" / name).unlink(missing_ok=True)
    await poor.start_state_machine()
    await cluster.equal("abc", values)
    await cluster.until(lambda: poor.host.counters.snapshots_restored == 1)


async def test_an_idle_group_sleeps_and_wakes(new_cluster: NewCluster) -> None:
    """An idle group sleeps; a write or the loss of its leader's store wakes it."""
    cluster = await new_cluster("a", "b", "c")
    await cluster.begin("a", "b", "c")
    await cluster.write(x="1")
    everybody = list(cluster.members.values())
    await cluster.until(lambda: not any(member.host.status.awake for member in everybody))
    await cluster.write(y="2")
    assert any(member.host.status.awake for member in everybody)
    await cluster.until(lambda: not any(member.host.status.awake for member in everybody))
    first = cluster.leading()
    await first.stop_machine()
    await first.stop()
    await cluster.until(cluster.leader)
    await cluster.write(z="3")
    await cluster.equal([member.name for member in everybody if member is not first], {"x": "1", "y": "2", "z": "3"})


async def test_the_report_of_a_sleeping_group_is_cached(new_cluster: NewCluster) -> None:
    """The report of a sleeping group is cached, and renewed after it wakes."""
    cluster = await new_cluster("a", "b", "c")
    await cluster.begin("a", "b", "c")
    everybody = list(cluster.members.values())
    await cluster.until(lambda: not any(member.host.status.awake for member in everybody))
    asleep = [member.host.reports()[ORDERS] for member in everybody]
    assert all(member.host.reports()[ORDERS] is report for member, report in zip(everybody, asleep, strict=True))
    await cluster.write(x="1")
    await cluster.until(lambda: not any(member.host.status.awake for member in everybody))
    for member, before in zip(everybody, asleep, strict=True):
        assert member.host.reports()[ORDERS].applied == before.applied + 1


async def test_a_sleeping_group_wakes_for_a_returning_member(new_cluster: NewCluster) -> None:
    """A group sleeps while a member is disconnected, and wakes when the member's store returns."""
    cluster = await new_cluster("a", "b", "c")
    await cluster.begin("a", "b", "c")
    away = next(member for member in cluster.members.values() if member is not cluster.leading())
    others = [member for member in cluster.members.values() if member is not away]
    await away.stop_machine()
    await away.stop()
    await cluster.write(x="1")
    await cluster.until(lambda: not any(member.host.status.awake for member in others))
    await away.start()
    await away.start_state_machine()
    await cluster.equal("abc", {"x": "1"})


async def test_a_state_machine_ahead_of_its_log_stops_the_replica(new_cluster: NewCluster) -> None:
    """A replica whose log lost entries that its state machine applied stops; other replicas continue."""
    cluster = await new_cluster("a", "b", "c")
    await cluster.begin("a", "b", "c")
    await cluster.write(x="1")
    bad = next(member for member in cluster.members.values() if member is not cluster.leading())
    await cluster.equal("abc", {"x": "1"})
    await bad.stop_machine()
    with sqlite3.connect(bad.directory / "state" / "state.db") as database:
        database.execute("update groups set applied = 1000")
    database.close()
    await bad.start_state_machine()
    await cluster.until(lambda: "lost entries" in bad.host.reports()[ORDERS].problem)
    await cluster.write(y="2")
    await cluster.equal([name for name in "abc" if name != bad.name], {"x": "1", "y": "2"})


async def test_a_gap_is_not_applied(new_cluster: NewCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gap between applied entries stops the replica; other replicas continue."""
    cluster = await new_cluster("a", "b", "c")
    await cluster.begin("a", "b", "c")
    await cluster.write(x="1")
    await cluster.equal("abc", {"x": "1"})
    bad = next(member for member in cluster.members.values() if member is not cluster.leading())
    (replica,) = bad.host._replicas.by_group.values()
    monkeypatch.setattr(replica.applier, "_sent", replica.applier._sent - 1)
    await cluster.write(y="2")
    await cluster.until(lambda: "would skip entries" in bad.host.reports()[ORDERS].problem)
    await cluster.equal([name for name in "abc" if name != bad.name], {"x": "1", "y": "2"})
    assert await bad.state() == {"x": "1"}
