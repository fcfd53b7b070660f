"""Who leads: a store that can serve, wherever there is one; and who sleeps is woken by whoever needs it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from evenkeel.protocol.records import Role
from evenkeel.protocol.replica import Start
from evenkeel.wire.messages import Drained, ReadAt
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
    first.host.set_reluctant(True)
    await drain(cluster, first)
    first.host.set_reluctant(False)
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
        changed = replica.changed

        def noted() -> None:
            told.add((member.name, replica.node.status().committed_in_term))
            changed()

        replica.changed = noted  # type: ignore[assignment]

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
    await cluster.until(lambda: not any(member.host.awake for member in cluster.members.values()))
    first.machine.hold = {"open", "apply"}
    await cluster.until(lambda: cluster.leader() not in (None, first))
    assert first.host.machine_silent
    first.machine.release()
    await cluster.until(lambda: not first.host.machine_silent)
    await lead(cluster, first)
    await stays_leader(cluster, first)


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
    await cluster.until(lambda: not any(member.host.awake for member in cluster.members.values()))
    await learner.stop()
    await learner.start()
    await cluster.until(lambda: replica_of(learner).applier.attached)
    await cluster.until(lambda: replica_of(learner).node.leader)
    assert isinstance(await cluster.read_index(learner), ReadAt)
