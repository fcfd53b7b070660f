"""Who leads: a store that can serve, wherever there is one; and who sleeps is woken by whoever needs it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from evenkeel.protocol.group_configuration import Configuration
from evenkeel.protocol.records import Role
from evenkeel.protocol.replica_decision import Start
from evenkeel.wire.socket_messages import Drained, ReadAt, Unknown
from evenkeel_raft.core.raft_messages import Message
from evenkeel_raft.shared.raft_groups import Partition
from tests.raft_host.support import ORDERS, Cluster, Member
from tests.raft_host.test_state_machines import pass_time, problem, replica_of

NewCluster = Callable[..., Awaitable[Cluster]]


async def stays_leader(cluster: Cluster, member: Member, *, seconds: int = 5) -> None:
    for _ in range(seconds):
        await pass_time(cluster, 1)
        assert cluster.leader() is member


async def lead(cluster: Cluster, member: Member) -> None:
    """Have a store lead."""

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
    """A state machine that drains hands over what is led here; its successor beside the same sidecar leads again."""
    cluster = await new_cluster("a", "b", "c")
    await cluster.begin("a", "b", "c")
    first = cluster.leading()
    await drain(cluster, first)
    assert cluster.leader() is not first
    await first.stop_machine()
    await first.start_machine()
    await cluster.until(lambda: replica_of(first).fit_to_lead)
    await lead(cluster, first)
    await stays_leader(cluster, first)


async def test_a_drain_outlives_other_reasons(new_cluster: NewCluster) -> None:
    """The end of an order to lead nothing is not the end of a store's own wish to."""
    cluster = await new_cluster("a", "b", "c")
    await cluster.begin("a", "b", "c")
    first = cluster.leading()
    first.host.set_leadership_inhibited(True)
    await drain(cluster, first)
    first.host.set_leadership_inhibited(False)
    await lead(cluster, first)
    await cluster.until(lambda: cluster.leader() not in (None, first))


async def test_nobody_is_always_the_one_to_hand_over_to(new_cluster: NewCluster) -> None:
    """Two stores without state machines, who chose each other each time, would keep the third from ever leading."""
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


async def test_a_leader_is_told_of_once_it_has_committed(new_cluster: NewCluster) -> None:
    """Whoever reports leaders hears of a new one also when its first entry is committed: before, it may not report."""
    cluster = await new_cluster("a", "b", "c")
    await cluster.begin("a", "b", "c")
    told: set[tuple[str, bool]] = set()

    def note(member: Member) -> None:
        replica = replica_of(member)
        changed = replica.notify_change

        def noted() -> None:
            told.add((member.name, replica.node.status().committed_in_term))
            changed()

        replica.notify_change = noted  # type: ignore[assignment]

    for member in cluster.members.values():
        note(member)
    other = next(member for member in cluster.members.values() if member is not cluster.leading())
    await lead(cluster, other)
    await cluster.until(lambda: (other.name, True) in told)


@pytest.mark.parametrize("healthy", ["a", "b", "c"])
async def test_the_one_that_can_serve_leads(new_cluster: NewCluster, healthy: str) -> None:
    """Where only one store's state machine is there, leadership finds it, whoever had it before."""
    cluster = await new_cluster("a", "b", "c")
    await cluster.begin("a", "b", "c")
    for member in cluster.members.values():
        if member.name != healthy:
            await member.stop_machine()
    await cluster.until(lambda: cluster.leader() is cluster[healthy])
    await stays_leader(cluster, cluster[healthy])
    await cluster.write(x="1")


async def test_a_store_that_hangs_does_not_lead(new_cluster: NewCluster) -> None:
    """A state machine that says nothing any more is noticed although nothing is wanted of it, and so is its return."""
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
    """A leader whose state machine does not answer, and that nobody can relieve, leads nothing the agent may report."""
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


async def test_nobody_leads_while_every_store_stands_still(new_cluster: NewCluster) -> None:
    """The same where entries are to be applied: then nothing else is asked of the state machine."""
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
    """However long it slept: members that nobody asks are not taken for silent ones, to whom nothing is given."""
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


async def test_a_state_that_is_lost_at_rest_is_found_out(new_cluster: NewCluster) -> None:
    """A group that its state machine has given up is refilled, although nothing was to be applied."""
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
    """It never campaigns, so nobody would notice it: its sleeping leader wakes when its store is back."""
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
    """It missed that it was removed, and calls the leader until it is deleted."""
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


async def test_a_leader_lost_while_its_group_falls_asleep_is_missed(new_cluster: NewCluster) -> None:
    """Followers that were told to sleep, and whose leader's store goes before their next tick, choose another."""
    cluster = await new_cluster("a", "b", "c")
    await cluster.begin("a", "b", "c")
    first = cluster.leading()
    others = [member for member in cluster.members.values() if member is not first]
    nodding = [replica_of(member) for member in others]
    await cluster.until(lambda: all(replica.node.quiesced and not replica.asleep for replica in nodding), step=0.005)
    await first.stop_machine()
    await first.stop()
    await cluster.until(cluster.leader)
    assert cluster.leader() in others


async def test_a_hundred_groups_that_wake_at_once_take_turns(new_cluster: NewCluster) -> None:
    """When the store goes that led them all, most are led again within two timeouts, not all at one tick."""
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
    """How many groups it leads."""
    return sum(report.leading for report in member.host.reports().values())


async def test_a_leader_gives_way_as_soon_as_its_state_machine_goes(
    new_cluster: NewCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not only when the host looks around: meanwhile nobody could be served."""
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
    """Whether a store may delete its replica is said by a leader that a quorum has confirmed, by no other."""
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


async def test_proposals_of_a_leader_that_is_none_any_more_are_answered(new_cluster: NewCluster) -> None:
    """Nobody knows what becomes of them, and whoever waits hears that when the leader steps down."""
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
