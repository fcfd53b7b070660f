"""Leadership goes to stores that can serve, and sleeping groups wake when needed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import pytest

from evenkeel.protocol.group_configuration import Configuration
from evenkeel.protocol.records import Role
from evenkeel.protocol.replica_decision import Start
from evenkeel.wire.socket_messages import Drained, ReadAt, Unknown
from evenkeel_raft.core.raft_messages import Message
from evenkeel_raft.shared.raft_groups import Partition
from tests.raft_host.support import ORDERS, Cluster, Member, NewCluster, pass_time, problem, replica_of


async def stays_leader(cluster: Cluster, member: Member, *, seconds: int = 5) -> None:
    for _ in range(seconds):
        await pass_time(cluster, 1)
        assert cluster.leader() is member


async def lead(cluster: Cluster, member: Member) -> None:
    """Transfer leadership to a store."""

    def led() -> bool:
        leader = cluster.leader()
        if leader not in (None, member):
            cluster.leading().host.transfer(ORDERS, (member.name, 1))
        return leader is member

    await cluster.until(led)


async def drain(cluster: Cluster, member: Member) -> None:
    assert member.end is not None
    draining = member.end.drain()
    await cluster.until(draining.done)
    assert draining.result() == Drained(0)


async def test_a_store_that_comes_back_may_lead_again(new_cluster: NewCluster) -> None:
    """A stopping state machine hands over all leaderships; its successor may lead again."""
    cluster = await new_cluster("a", "b", "c")
    await cluster.begin("a", "b", "c")
    first = cluster.leading()
    await drain(cluster, first)
    assert cluster.leader() is not first
    await first.stop_machine()
    await first.start_state_machine()
    await cluster.until(lambda: replica_of(first).fit_to_lead)
    await lead(cluster, first)
    await stays_leader(cluster, first)


async def test_reasons_to_inhibit_leadership_are_independent(new_cluster: NewCluster) -> None:
    """Leadership stays inhibited by a stopping state machine after the operator's order is lifted."""
    cluster = await new_cluster("a", "b", "c")
    await cluster.begin("a", "b", "c")
    first = cluster.leading()
    first.host.set_leadership_inhibited(True)
    await drain(cluster, first)
    first.host.set_leadership_inhibited(False)
    await lead(cluster, first)
    await cluster.until(lambda: cluster.leader() not in (None, first))


async def test_the_successor_is_random(new_cluster: NewCluster) -> None:
    """The successor is random: two unfit stores could otherwise pass leadership to each other for ever."""
    cluster = await new_cluster("a", "b", "c")
    await cluster.begin("a", "b", "c")
    await cluster.write(x="1")
    leader = cluster.leading()
    await cluster.until(lambda: leader.view is not None and len(leader.view.caught_up) == 3)
    replica, chosen = replica_of(leader), set[int]()
    replica.transfer = lambda to: chosen.add(to) or True  # type: ignore[method-assign,func-returns-value]
    for _ in range(50):
        replica.hand_over()
    assert len(chosen) == 2


async def test_a_new_leader_is_notified_once_it_has_committed(new_cluster: NewCluster) -> None:
    """The agent is notified when a new leader has committed in its term: earlier it may not report the leader."""
    cluster = await new_cluster("a", "b", "c")
    await cluster.begin("a", "b", "c")
    notified: set[tuple[str, bool]] = set()

    def note(member: Member) -> None:
        replica = replica_of(member)
        changed = replica.notify_change

        def noted() -> None:
            notified.add((member.name, replica.node.status().committed_in_term))
            changed()

        replica.notify_change = noted  # type: ignore[assignment]

    for member in cluster.members.values():
        note(member)
    other = next(member for member in cluster.members.values() if member is not cluster.leading())
    await lead(cluster, other)
    await cluster.until(lambda: (other.name, True) in notified)


@pytest.mark.parametrize("healthy", ["a", "b", "c"])
async def test_the_store_that_can_serve_leads(new_cluster: NewCluster, healthy: str) -> None:
    """If only one store has a state machine, it becomes the leader."""
    cluster = await new_cluster("a", "b", "c")
    await cluster.begin("a", "b", "c")
    for member in cluster.members.values():
        if member.name != healthy:
            await member.stop_machine()
    await cluster.until(lambda: cluster.leader() is cluster[healthy])
    await stays_leader(cluster, cluster[healthy])
    await cluster.write(x="1")


async def test_a_store_that_hangs_does_not_lead(new_cluster: NewCluster) -> None:
    """A state machine that hangs while idle is detected, and so is its recovery."""
    cluster = await new_cluster("a", "b", "c")
    await cluster.begin("a", "b", "c")
    first = cluster.leading()
    await cluster.until(lambda: not any(member.host.status.awake for member in cluster.members.values()))
    first.machine.hold = {"open", "apply"}
    await cluster.until(lambda: cluster.leader() not in (None, first))
    assert first.host.status.machine_silent
    first.machine.release()
    await cluster.until(lambda: not first.host.status.machine_silent)
    await lead(cluster, first)
    await stays_leader(cluster, first)


async def test_nobody_leads_while_every_store_hangs(new_cluster: NewCluster) -> None:
    """If no state machine answers, no leader is reported."""
    cluster = await new_cluster("a", "b", "c")
    await cluster.begin("a", "b", "c")
    await cluster.until(lambda: not any(member.host.status.awake for member in cluster.members.values()))
    for member in cluster.members.values():
        member.machine.hold = {"open", "apply"}
    await cluster.until(lambda: all(member.host.status.machine_silent for member in cluster.members.values()))
    assert all(member.view is None for member in cluster.members.values())
    assert {problem(member) for member in cluster.members.values()} == {"the state machine does not answer"}
    for member in cluster.members.values():
        member.machine.release()
    await cluster.until(lambda: any(member.view is not None for member in cluster.members.values()))
    await cluster.write(x="1")
    assert {problem(member) for member in cluster.members.values()} == {""}


async def test_nobody_leads_while_every_store_is_stalled(new_cluster: NewCluster) -> None:
    """If no state machine applies entries, no leader is reported."""
    cluster = await new_cluster("a", "b", "c")
    await cluster.begin("a", "b", "c")
    for member in cluster.members.values():
        member.machine.hold = {"open", "apply"}
    writing = asyncio.ensure_future(cluster.write(x="1"))
    await cluster.until(lambda: all(member.view is None for member in cluster.members.values()))
    for member in cluster.members.values():
        member.machine.release()
    await cluster.until(lambda: any(member.view is not None for member in cluster.members.values()))
    await writing


async def test_leadership_of_a_sleeping_group_can_be_handed_over(new_cluster: NewCluster) -> None:
    """Members of a sleeping group count as answering, however long it slept."""
    cluster = await new_cluster("a", "b", "c")
    await cluster.begin("a", "b", "c")
    await cluster.until(lambda: not any(member.host.status.awake for member in cluster.members.values()))
    leader = cluster.leading()
    ticks = leader.host._maintenance.ticks
    then = ticks.now + 3 * leader.host.settings.raft.election_ticks
    await cluster.until(lambda: ticks.now >= then)
    assert not leader.host.status.awake
    assert leader.view is not None
    assert leader.view.answering == {(name, 1) for name in "abc"}


async def test_a_state_lost_while_idle_is_detected(new_cluster: NewCluster) -> None:
    """A state lost while its group is idle is detected and restored."""
    cluster = await new_cluster("a", "b", "c")
    await cluster.begin("a", "b", "c")
    await cluster.write(x="1")
    await cluster.equal("abc", {"x": "1"})
    bad = next(member for member in cluster.members.values() if member is not cluster.leading())
    bad.machine._damage = "a page is unreadable"
    await cluster.until(lambda: "a page is unreadable" in problem(bad))
    bad.machine._damage = ""
    await cluster.until(lambda: problem(bad) == "")
    await cluster.equal("abc", {"x": "1"})


async def test_a_learner_that_restarts_wakes_its_group(new_cluster: NewCluster) -> None:
    """A restarted learner wakes its sleeping leader when its store reconnects."""
    cluster = await new_cluster("a", "b", "c", "d")
    await cluster.begin("a", "b", "c")
    learner = cluster["d"]
    await learner.host.start(ORDERS, Start(learner.peer(2, Role.LEARNER)))
    await cluster.change(*(cluster[name].peer() for name in "abc"), learner.peer(2, Role.LEARNER), token=3)
    await cluster.write(x="1")
    await cluster.equal("abcd", {"x": "1"})
    await cluster.until(lambda: not any(member.host.status.awake for member in cluster.members.values()))
    await learner.stop()
    await learner.start()
    await cluster.until(lambda: replica_of(learner).applier.attached)
    await cluster.until(lambda: replica_of(learner).node.leader)
    assert isinstance(await cluster.read_index(learner), ReadAt)


async def test_a_removed_learner_does_not_keep_its_group_awake(
    new_cluster: NewCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A removed learner that missed its removal does not wake its former group."""
    cluster = await new_cluster("a", "b", "c", "d")
    voters = [cluster[name] for name in "abc"]
    await cluster.begin("a", "b", "c")
    learner = cluster["d"]
    await learner.host.start(ORDERS, Start(learner.peer(2, Role.LEARNER)))
    await cluster.change(*(voter.peer() for voter in voters), learner.peer(2, Role.LEARNER), token=3)
    await cluster.write(x="1")
    await cluster.equal("abcd", {"x": "1"})
    for voter in voters:
        monkeypatch.setattr(voter.host.peers, "send", partial(send_except, learner.name, voter.host.peers.send))
    await cluster.change(*(voter.peer() for voter in voters), token=4)
    await cluster.until(lambda: not any(voter.host.status.awake for voter in voters))
    assert replica_of(learner).node.leader
    assert learner.host.status.awake
    for _ in range(100):
        await pass_time(cluster, 0.1)
        assert not any(voter.host.status.awake for voter in voters)


def send_except(missed: str, send: Callable[[str, Message], None], store: str, message: Message) -> None:
    if store != missed:
        send(store, message)


async def test_a_leader_lost_while_its_group_falls_asleep_is_replaced(new_cluster: NewCluster) -> None:
    """Followers elect another leader if the leader's store stops while the group falls asleep."""
    cluster = await new_cluster("a", "b", "c")
    await cluster.begin("a", "b", "c")
    first = cluster.leading()
    others = [member for member in cluster.members.values() if member is not first]
    followers = [replica_of(member) for member in others]
    await cluster.until(lambda: all(replica.node.quiesced and not replica.asleep for replica in followers), step=0.005)
    await first.stop_machine()
    await first.stop()
    await cluster.until(cluster.leader)
    assert cluster.leader() in others


async def test_elections_of_a_hundred_groups_are_spread(new_cluster: NewCluster) -> None:
    """When the leader of a hundred sleeping groups stops, elections are spread over time and most end quickly."""
    cluster = await new_cluster("a", "b", "c")
    partitions = [Partition("orders.1", number) for number in range(100)]
    peers = tuple(member.peer() for member in cluster.members.values())
    for member in cluster.members.values():
        for partition in partitions:
            await member.host.start(partition, Start(member.peer(), Configuration(peers)))
    first, *others = cluster.members.values()
    await cluster.until(lambda: sum(map(led, cluster.members.values())) == len(partitions))
    for member in others:
        member.host.set_leadership_inhibited(True)
    await cluster.until(lambda: led(first) == len(partitions))
    for member in others:
        member.host.set_leadership_inhibited(False)
    await cluster.until(lambda: not any(member.host.status.awake for member in cluster.members.values()))
    await first.stop_machine()
    await first.stop()
    gone, times = cluster.clock.now(), []
    before = 0

    def all_led() -> bool:
        nonlocal before
        now = sum(map(led, others))
        times.extend([cluster.clock.now() - gone] * (now - before))
        before = now
        return now == len(partitions)

    await cluster.until(all_led)
    settings = first.settings
    assert times[len(times) // 2] <= 2 * settings.election_seconds
    assert len({round(time / settings.tick_seconds) for time in times}) >= settings.raft.election_ticks // 2


def led(member: Member) -> int:
    """Return the number of groups that a store leads."""
    return sum(report.leading for report in member.host.reports().values())


async def test_a_leader_hands_over_when_its_state_machine_disconnects(
    new_cluster: NewCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader hands over as soon as its state machine disconnects, not only in the sweep."""
    monkeypatch.setattr("evenkeel_raft.host.host_maintenance._SWEEP_TICKS", 1 << 62)
    cluster = await new_cluster("a", "b", "c")
    await cluster.begin("a", "b", "c")
    await cluster.write(x="1")
    first = cluster.leading()
    await first.stop_machine()
    await cluster.until(lambda: cluster.leader() not in (None, first))


async def test_a_leader_that_is_cut_off_excludes_nobody(
    new_cluster: NewCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a leader confirmed by a quorum may declare a replica excluded."""
    cluster = await new_cluster("a", "b", "c", "d")
    await cluster.begin("a", "b", "c")
    stranger, leader = cluster["d"], cluster.leading()
    await stranger.host.start(ORDERS, Start(stranger.peer(2)))

    async def excluded() -> bool:
        asking = asyncio.create_task(stranger.host.ask_leader(ORDERS, ("d", 2), [leader.name]))
        await cluster.until(asking.done)
        return asking.result()

    assert await excluded()
    monkeypatch.setattr(leader.host.peers, "send", lambda store, message: None)
    assert not await excluded()


async def test_proposals_of_a_deposed_leader_are_answered(new_cluster: NewCluster) -> None:
    """Pending proposals are answered as unknown when the leader steps down."""
    cluster = await new_cluster("a", "b", "c")
    await cluster.begin("a", "b", "c")
    leader = cluster.leading()
    for other in cluster.members.values():
        if other is not leader:
            await other.stop_machine()
            await other.stop()
    future = cluster.propose(leader, b"\x91\xa7barrier")
    await cluster.until(future.done)
    assert future.result() == Unknown()
    assert not replica_of(leader).node.leading
