"""Leaders that cannot hand over: one without its state gets it back, one without followers steps down."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from evenkeel.protocol.group_configuration import Configuration
from evenkeel.protocol.keys import group_number
from evenkeel.protocol.records import Peer, Role, StoreSettings
from evenkeel.protocol.replica_decision import Start
from evenkeel.wire.framing import Reason
from evenkeel.wire.socket_messages import Committed
from evenkeel_raft.host import snapshot_sender
from evenkeel_raft.net.files.snapshot_manifest import Manifest, make_manifest
from evenkeel_reference.reference_entries import Upsert, encode_entry
from tests.raft_host.support import (
    ORDERS,
    SHORT_LOG,
    VALUES,
    Cluster,
    Member,
    NewCluster,
    pass_time,
    problem,
    replica_of,
)


async def grown(new_cluster: NewCluster, *learners: str) -> Cluster:
    """Return a group with the voter `a` and caught-up learners, whose logs are compacted."""
    cluster = await new_cluster("a", "b", "c", settings=SHORT_LOG)
    await cluster.begin("a")
    for name in learners:
        await cluster[name].host.start(ORDERS, Start(cluster[name].peer(2, Role.LEARNER)))
    await cluster.change(*members(cluster, *learners), token=3)
    await cluster.write(**VALUES)
    await cluster.equal(["a", *learners], VALUES)
    await cluster.until(lambda: replica_of(cluster["a"]).node.offset > 1)
    return cluster


def members(cluster: Cluster, *learners: str) -> list[Peer]:
    return [cluster["a"].peer(), *(cluster[name].peer(2, Role.LEARNER) for name in learners)]


async def damage(member: Member) -> None:
    """Damage the state and keep the log."""
    await member.stop_machine()
    (member.directory / "state" / "state.db").write_bytes(b"not a database" * 500)
    await member.start_state_machine()


def delete_state(member: Member) -> None:
    """Delete the state while the state machine is stopped."""
    for path in (member.directory / "state").glob("state.db*"):
        path.unlink()


async def test_the_only_voter_gets_its_state_from_a_learner(new_cluster: NewCluster) -> None:
    """The only voter stays leader, gets its state from a learner and keeps all acknowledged writes."""
    cluster = await grown(new_cluster, "b")
    voter, learner = cluster["a"], cluster["b"]
    await damage(voter)
    await cluster.until(lambda: "the state is damaged" in problem(voter))
    assert voter.view is None
    await cluster.equal("ab", VALUES)
    await cluster.until(lambda: cluster.leader() is voter)
    assert voter.host.counters.snapshots_restored == 1
    await cluster.until(lambda: learner.host.counters.snapshots_sent == 1)
    await cluster.write(more="1")
    await cluster.equal("ab", VALUES | {"more": "1"})
    await pass_time(cluster, 70)
    await cluster.until(lambda: problem(voter) == problem(learner) == "")
    assert learner.host.counters.snapshots_sent == 1


async def test_a_leader_serves_only_once_its_state_is_restored(new_cluster: NewCluster) -> None:
    """Until a restore has ended, the replica is reported as damaged and does not lead."""
    cluster = await grown(new_cluster, "b")
    voter = cluster["a"]
    await voter.stop_machine()
    delete_state(voter)
    await voter.start_state_machine(hold={"restore"})
    await cluster.until(lambda: voter.machine.asked["restore"])
    for _ in range(20):
        await pass_time(cluster, 1)
        report = voter.host.reports()[ORDERS]
        assert (voter.view, report.damaged) == (None, True)
        assert report.problem == "the state machine has lost its state: restoring it from a snapshot"
    voter.machine.release()
    await cluster.until(lambda: cluster.leader() is voter)
    report = voter.host.reports()[ORDERS]
    assert (report.damaged, report.problem) == (False, "")
    assert await voter.state() == VALUES


async def test_a_new_member_that_restores_its_first_snapshot_is_not_damaged(new_cluster: NewCluster) -> None:
    """A new member that restores its first snapshot is not reported as damaged."""
    cluster = await grown(new_cluster)
    learner = cluster["b"]
    learner.machine.hold = {"restore"}
    await learner.host.start(ORDERS, Start(learner.peer(2, Role.LEARNER)))
    changing = asyncio.create_task(cluster.change(*members(cluster, "b"), token=4))
    await cluster.until(lambda: learner.machine.asked["restore"])
    assert not replica_of(learner).fit_to_lead
    assert not learner.host.reports()[ORDERS].damaged
    learner.machine.release()
    await changing
    await cluster.until(lambda: replica_of(learner).fit_to_lead)


@pytest.mark.parametrize("until", ["snapshot", "restore"])
async def test_leadership_stays_with_a_voter_that_a_learner_repairs(new_cluster: NewCluster, until: str) -> None:
    """Leadership stays with a voter that is being repaired if the other voter has no state either."""
    cluster = await new_cluster("a", "b", "c", settings=SHORT_LOG)
    voters, learner = [cluster["a"], cluster["b"]], cluster["c"]
    await cluster.begin("a", "b")
    await learner.host.start(ORDERS, Start(learner.peer(2, Role.LEARNER)))
    await cluster.change(*(voter.peer() for voter in voters), learner.peer(2, Role.LEARNER), token=3)
    await cluster.write(**VALUES)
    await cluster.equal("abc", VALUES)
    await cluster.until(lambda: all(replica_of(voter).node.offset > 1 for voter in voters))
    if until == "snapshot":
        learner.machine.hold = {until}
    for voter in voters:
        await voter.stop_machine()
        delete_state(voter)
    for voter in voters:
        await voter.start_state_machine(hold={until})
    await cluster.until(lambda: all(replica_of(voter).applier.lost_state for voter in voters))
    await cluster.until(lambda: any(member.machine.asked[until] for member in cluster.members.values()))
    await pass_time(cluster, 1)
    handed_over = [voter.host.counters.handed_over for voter in voters]
    await pass_time(cluster, 20)
    assert [voter.host.counters.handed_over for voter in voters] == handed_over
    for member in cluster.members.values():
        member.machine.release()
    await cluster.equal("abc", VALUES)
    await cluster.until(cluster.leader)


async def test_proposals_of_a_leader_without_a_state_are_answered(new_cluster: NewCluster) -> None:
    """Proposals accepted by a leader without a state are answered, even if its snapshot contains them."""
    cluster = await grown(new_cluster, "b")
    voter, learner = cluster["a"], cluster["b"]
    learner.machine.hold = {"snapshot"}
    await damage(voter)
    await cluster.until(lambda: learner.machine.asked["snapshot"])
    entry = encode_entry(Upsert("late", 1, b"late", b"1"))
    assert voter.end is not None
    writing = voter.end.propose(group_number(*ORDERS), replica_of(voter).id[1], entry)
    await cluster.equal("b", VALUES | {"late": "1"})
    assert not writing.done()
    learner.machine.release()
    await cluster.until(writing.done)
    assert isinstance(writing.result(), Committed)
    await cluster.equal("a", VALUES | {"late": "1"})


async def test_a_second_learner_is_asked_if_the_first_is_gone(new_cluster: NewCluster) -> None:
    """A second learner is asked if the first does not answer."""
    cluster = await grown(new_cluster, "b", "c")
    voter = cluster["a"]
    for name in "bc":
        await cluster[name].stop_machine()
    await damage(voter)
    await pass_time(cluster, 5)
    assert not replica_of(voter).fit_to_lead
    await cluster.until(lambda: "the state is damaged" in problem(voter))
    await cluster["c"].start_state_machine()
    await cluster.equal("ac", VALUES)
    await cluster.until(lambda: cluster.leader() is voter)


async def test_two_learners_do_not_disturb_each_other(new_cluster: NewCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The voter asks no second learner while the first one is sending."""
    monkeypatch.setattr("evenkeel_raft.core.leader_role._REQUESTS_PER_MEMBER", 40)
    cluster = await grown(new_cluster, "b", "c")
    voter, learners = cluster["a"], [cluster["b"], cluster["c"]]
    slow_and_different(monkeypatch, *learners)
    await damage(voter)
    await cluster.until(lambda: any(learner.machine.asked["snapshot"] for learner in learners))
    await cluster.until(lambda: is_receiving(voter), step=0.0)
    began = cluster.clock.now()
    await cluster.until(lambda: voter.host.counters.snapshots_restored, step=0.05)
    assert cluster.clock.now() - began > 80 * voter.settings.election_seconds
    await cluster.until(lambda: sum(learner.host.counters.snapshots_sent for learner in learners) == 1)
    assert sum(learner.machine.asked["snapshot"] for learner in learners) == 1
    assert Reason.REPLACED not in voter.host.peers.drops
    await cluster.equal("abc", VALUES)


async def test_of_two_snapshots_for_a_leader_the_first_is_received(
    new_cluster: NewCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If two learners offer a snapshot, the first is received and the second declined."""
    monkeypatch.setattr("evenkeel_raft.core.leader_role._REQUESTS_PER_MEMBER", 40)
    cluster = await grown(new_cluster, "b", "c")
    voter, learners = cluster["a"], [cluster["b"], cluster["c"]]
    slow_and_different(monkeypatch, *learners)
    for learner in learners:
        learner.machine.hold = {"snapshot"}
    await damage(voter)
    await cluster.until(lambda: all(learner.machine.asked["snapshot"] for learner in learners))
    for learner in learners:
        learner.machine.release()
    await cluster.until(lambda: voter.host.counters.snapshots_restored, step=0.05)
    await cluster.until(lambda: sum(learner.host.counters.snapshots_sent for learner in learners) == 1)
    assert sum(learner.host.counters.snapshots_failed for learner in learners) == 1
    assert Reason.REPLACED not in voter.host.peers.drops
    await cluster.equal("abc", VALUES)


def is_receiving(member: Member) -> bool:
    node = replica_of(member).node
    return member.host.peers.receiving(group_number(*ORDERS), node.replica, term=node.term)


def slow_and_different(monkeypatch: pytest.MonkeyPatch, *senders: Member) -> None:
    """Make snapshots take two minutes, with different files at each store."""

    def manifest_of(directory: Path, files: Sequence[str]) -> Manifest:
        number = next(at for at, sender in enumerate(senders) if directory.is_relative_to(sender.directory))
        return make_manifest(directory, files, chunk_bytes=4096 + number)

    monkeypatch.setattr(snapshot_sender, "make_manifest", manifest_of)
    for sender in senders:
        sender.host.throttle(StoreSettings(bytes_per_second=100.0))


async def test_a_state_that_nobody_has_is_reported_as_damaged(new_cluster: NewCluster) -> None:
    """A leader whose state no member has is reported as damaged and does not lead."""
    cluster = await grown(new_cluster)
    voter = cluster["a"]
    await voter.stop_machine()
    delete_state(voter)
    await voter.start_state_machine()
    await cluster.until(lambda: replica_of(voter).applier.lost_state and replica_of(voter).node.leading)
    await pass_time(cluster, 5)
    report = voter.host.reports()[ORDERS]
    assert report.problem == "the state machine has lost its state: waiting for a snapshot from a member that has it"
    assert report.damaged
    assert voter.view is None


async def test_the_only_incoming_voter_gets_its_state_from_an_outgoing_one(new_cluster: NewCluster) -> None:
    """In a joint configuration, the only incoming voter gets its state from an outgoing one."""
    cluster = await grown(new_cluster, "b")
    outgoing, incoming = cluster["a"], cluster["b"]
    target, node = incoming.peer(2), replica_of(outgoing).node
    joint = Configuration((target,), outgoing=(outgoing.peer(),), token=4)
    await cluster.until(lambda: outgoing.host.propose(ORDERS, joint))
    await cluster.until(lambda: node.conf.joint)
    await damage(incoming)
    await cluster.change(target, token=4)
    assert cluster.leader() is incoming
    await cluster.equal("b", VALUES)


@pytest.mark.parametrize("cut", ["stores", "links"])
async def test_a_sleeping_leader_that_is_cut_off_steps_down(
    new_cluster: NewCluster, monkeypatch: pytest.MonkeyPatch, cut: str
) -> None:
    """A sleeping leader that is cut off wakes, steps down and reports it."""
    cluster = await new_cluster("a", "b", "c")
    await cluster.begin("a", "b", "c")
    await cluster.write(x="1")
    leader = await sleeping_leader(cluster)
    others = [member for member in cluster.members.values() if member is not leader]
    led: list[bool] = []
    replica = replica_of(leader)
    notify = replica.notify_change

    def notify_change() -> None:
        led.append(replica.node.leading)
        notify()

    monkeypatch.setattr(replica, "notify_change", notify_change)
    if cut == "links":
        leader.host.set_peers({})
        await cluster.until(lambda: cluster.leader() in others)
    else:
        for other in others:
            await other.stop_machine()
            await other.stop()
    await cluster.until(lambda: not replica.node.leading and led and not led[-1])
    await cluster.until(lambda: problem(leader) == "no leader: a majority of the voters is unreachable")


async def sleeping_leader(cluster: Cluster) -> Member:
    """Return the leader once all groups sleep and no message is in flight."""
    await pass_time(cluster, 5)
    await cluster.until(lambda: not any(member.host.status.awake for member in cluster.members.values()))
    return cluster.leading()


def disconnected(member: Member, store: str) -> bool:
    return not member.host.peers.connected(store)


async def test_a_sleeping_leader_wakes_when_the_link_to_its_quorum_is_lost(new_cluster: NewCluster) -> None:
    """The loss of the links to its quorum wakes a sleeping leader immediately."""
    cluster = await new_cluster("a", "b", "c")
    await cluster.begin("a", "b", "c")
    leader = await sleeping_leader(cluster)
    others = [member for member in cluster.members.values() if member is not leader]
    awake = []
    for other in others:
        await other.stop_machine()
        await other.stop()
        await cluster.until(partial(disconnected, leader, other.name), step=0.0)
        awake.append(leader.host.status.awake)
    assert awake == [0, 1]


async def test_a_sleeping_leader_with_a_quorum_stays_asleep(new_cluster: NewCluster) -> None:
    """A sleeping leader stays asleep while it has a quorum."""
    cluster = await new_cluster("a", "b", "c")
    await cluster.begin("a", "b", "c")
    leader = await sleeping_leader(cluster)
    other = next(member for member in cluster.members.values() if member is not leader)
    await other.stop_machine()
    await other.stop()
    await pass_time(cluster, 5)
    assert leader.host.status.awake == 0
    assert cluster.leader() is leader
