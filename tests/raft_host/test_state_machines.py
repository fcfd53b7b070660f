"""State machines that fail, hang, lie or lose what they had: their replica waits, others serve, and nothing is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from evenkeel.errors import StateMachineError
from evenkeel.protocol.keys import group_number
from evenkeel.protocol.records import Role
from evenkeel.protocol.replica_decision import Start
from evenkeel.wire.socket_messages import Applied
from evenkeel_raft.host.raft_replica import Replica
from tests.raft_host.support import ORDERS, QUICK, Cluster, Member

NewCluster = Callable[..., Awaitable[Cluster]]
SHORT_LOG = msgspec.structs.replace(QUICK, keep_log_bytes=2000)
VALUES = {f"k{number}": "v" * 200 for number in range(60)}


def replica_of(member: Member) -> Replica:
    return member.host._replicas.by_group[group_number(*ORDERS)]


def problem(member: Member) -> str:
    return member.host.reports()[ORDERS].problem


async def pass_time(cluster: Cluster, seconds: float) -> None:
    until = cluster.clock.now() + seconds
    await cluster.until(lambda: cluster.clock.now() >= until)


async def beyond_the_log(new_cluster: NewCluster) -> tuple[Cluster, Member]:
    """A group whose log no longer reaches back to its beginning, and a store that is to be a learner of it."""
    cluster = await new_cluster("a", "b", "c", "d", settings=SHORT_LOG)
    await cluster.begin("a", "b", "c")
    await cluster.write(**VALUES)
    leader = cluster.leading()
    await cluster.until(lambda: leader.host.reports()[ORDERS].log_bytes < 8000)
    newcomer = cluster["d"]
    await newcomer.host.start(ORDERS, Start(newcomer.peer(2, Role.LEARNER)))
    return cluster, newcomer


async def add_learner(cluster: Cluster, newcomer: Member) -> None:
    peers = (*(cluster[name].peer() for name in "abc"), newcomer.peer(2, Role.LEARNER))
    await cluster.change(*peers, token=3)


async def test_a_machine_that_always_fails_does_not_lead(new_cluster: NewCluster) -> None:
    """Who cannot apply leads no more and says why; it is tried ever more slowly, and in the end has missed nothing."""
    cluster = await new_cluster("a", "b", "c")
    await cluster.begin("a", "b", "c")
    bad = cluster.leading()
    bad.machine.refuse["apply"] = "no space left"
    await cluster.write(x="1")
    await cluster.until(lambda: cluster.leader() not in (None, bad))
    opened = bad.machine.asked["open"]
    for second in range(60):
        await pass_time(cluster, 1)
        assert cluster.leader() is not bad, f"after {second} s"
    assert problem(bad) == "no space left"
    assert bad.machine.asked["open"] - opened < 20
    await cluster.write(y="2")
    del bad.machine.refuse["apply"]
    await cluster.equal("abc", {"x": "1", "y": "2"})
    await cluster.until(lambda: problem(bad) == "")
    assert replica_of(bad).fit_to_lead


async def test_a_snapshot_that_cannot_be_restored_is_replaced(new_cluster: NewCluster) -> None:
    """One that arrived while no state machine was there, and turns out to be of no use, is given up for another."""
    cluster, newcomer = await beyond_the_log(new_cluster)
    await newcomer.stop_machine()
    changing = asyncio.create_task(add_learner(cluster, newcomer))
    inbox = newcomer.directory / "raft" / "inbox"
    await cluster.until(lambda: any(not path.name.endswith(".partial") for path in inbox.iterdir()))
    for rows in inbox.glob("*/rows"):
        rows.write_bytes(b"rubbish")
    await newcomer.start_machine()
    await changing
    await cluster.equal("abcd", VALUES)
    await cluster.until(lambda: problem(newcomer) == "")


async def test_nothing_is_restored_before_the_log_has_it(new_cluster: NewCluster) -> None:
    """A state machine ahead of its log after a crash could never be gone on with: the log's record comes first."""
    cluster, newcomer = await beyond_the_log(new_cluster)
    await newcomer.stop_machine()
    await newcomer.start_machine(hold={"open"})
    await cluster.until(lambda: newcomer.machine.asked["open"])
    # The disk does not get on from here.
    writes: list[Callable[[], None]] = []
    replica = replica_of(newcomer)
    persisted = replica._on_persisted
    replica._on_persisted = lambda batch: writes.append(lambda: persisted(batch))  # type: ignore[method-assign]
    changing = asyncio.create_task(add_learner(cluster, newcomer))
    await cluster.until(lambda: replica.node.restoring)
    newcomer.machine.release()
    await cluster.until(lambda: replica.applier.attached)
    await pass_time(cluster, 1)
    assert newcomer.machine.asked["restore"] == 0
    replica._on_persisted = persisted  # type: ignore[method-assign]
    for write in writes:
        write()
    await changing
    await cluster.equal("abcd", VALUES)


async def test_nothing_is_applied_past_a_gap(new_cluster: NewCluster) -> None:
    """What follows a snapshot whose files are gone is not handed over: the state machine would never miss them."""
    cluster, newcomer = await beyond_the_log(new_cluster)
    writes: list[Callable[[], None]] = []
    replica = replica_of(newcomer)
    persisted = replica._on_persisted
    replica._on_persisted = lambda batch: writes.append(lambda: persisted(batch))  # type: ignore[method-assign]
    changing = asyncio.create_task(add_learner(cluster, newcomer))
    await cluster.until(lambda: replica.node.restoring)
    snapshot = replica.node.restoring
    await cluster.write(**VALUES)
    node = replica.node
    await cluster.until(lambda: node.status().last_index > snapshot and node.committed > snapshot)
    replica.applier.received_snapshots.drop()
    replica._on_persisted = persisted  # type: ignore[method-assign]
    for write in writes:
        write()
    await changing
    await cluster.equal("abcd", VALUES)
    await cluster.until(lambda: newcomer.host.counters.snapshots_restored == 1)


async def test_a_machine_that_claims_too_much_stops_its_replica(new_cluster: NewCluster) -> None:
    """An answer beyond all that was handed out shows that state and log do not belong together."""
    cluster = await new_cluster("a", "b", "c")
    await cluster.begin("a", "b", "c")
    bad = next(member for member in cluster.members.values() if member is not cluster.leading())
    honest = bad.machine.apply
    bad.machine.apply = lambda group, replica, request, answer: honest(  # type: ignore[method-assign]
        group, replica, request, lambda _: answer(Applied(1000))
    )
    await cluster.write(x="1")
    await cluster.until(lambda: "1000 was reported applied" in problem(bad))
    await cluster.write(y="2")


async def test_an_open_that_never_answers_is_said(new_cluster: NewCluster) -> None:
    """A leader whose state machine comes back and says nothing gives way, and what is waited for is named."""
    cluster = await new_cluster("a", "b", "c")
    await cluster.begin("a", "b", "c")
    await cluster.write(x="1")
    bad = cluster.leading()
    await bad.stop_machine()
    await bad.start_machine(hold={"open"})
    await cluster.until(lambda: cluster.leader() not in (None, bad))
    await cluster.until(lambda: "has not answered" in problem(bad))
    bad.machine.release()
    await cluster.equal("abc", {"x": "1"})
    await cluster.until(lambda: problem(bad) == "")


async def test_an_apply_that_never_answers_is_said(new_cluster: NewCluster) -> None:
    """A state machine that hangs is no reason to hang with it: another leads, and the standstill is named."""
    cluster = await new_cluster("a", "b", "c")
    await cluster.begin("a", "b", "c")
    bad = cluster.leading()
    bad.machine.hold = {"apply"}
    await cluster.write(x="1")
    await cluster.until(lambda: cluster.leader() not in (None, bad))
    await cluster.until(lambda: "is stalled" in problem(bad))
    bad.machine.release()
    await cluster.equal("abc", {"x": "1"})
    await cluster.until(lambda: problem(bad) == "")


async def test_a_backlog_is_bounded(new_cluster: NewCluster) -> None:
    """A follower without a state machine takes in only so much: its memory is not the place for a table's history."""
    limit = 20_000
    cluster = await new_cluster("a", "b", "c", settings=msgspec.structs.replace(SHORT_LOG, max_log_bytes=limit))
    await cluster.begin("a", "b", "c")
    poor = next(member for member in cluster.members.values() if member is not cluster.leading())
    await poor.stop_machine()
    node, refused = replica_of(poor).node, poor.host.counters.refused_messages
    values: dict[str, str] = {}
    while not refused["backlog"]:
        more = {f"k{len(values) + number}": "v" * 200 for number in range(20)}
        await cluster.write(**more)
        values |= more
    assert node.unapplied_bytes() > limit
    more = {f"more{number}": "v" * 1000 for number in range(100)}
    await cluster.write(**more)
    values |= more
    assert node.unapplied_bytes() < 2 * limit
    assert node.leader
    await poor.start_machine()
    await cluster.equal("abc", values)


async def test_damage_is_told_for_a_while(new_cluster: NewCluster) -> None:
    """A state that says it is damaged is filled anew, and whoever looks a minute later still hears that it was."""
    cluster, newcomer = await beyond_the_log(new_cluster)
    await add_learner(cluster, newcomer)
    await cluster.equal("abcd", VALUES)
    await newcomer.stop_machine()
    (newcomer.directory / "state" / "state.db").write_bytes(b"not a database" * 500)
    await newcomer.start_machine()
    await cluster.until(lambda: "the state is damaged" in problem(newcomer))
    assert newcomer.host.reports()[ORDERS].damaged
    await cluster.until(lambda: "the state was damaged and has been restored" in problem(newcomer))
    await cluster.equal("abcd", VALUES)
    await pass_time(cluster, 50)
    assert newcomer.host.reports()[ORDERS].damaged
    await pass_time(cluster, 15)
    assert (problem(newcomer), newcomer.host.reports()[ORDERS].damaged) == ("", False)


async def test_doubts_are_told_and_end(new_cluster: NewCluster) -> None:
    """What a state machine has against its state is its replica's problem, until it says otherwise or is opened."""
    cluster = await new_cluster("a", "b", "c")
    await cluster.begin("a", "b", "c")
    member = cluster["b"]
    assert member.end is not None
    group, number = group_number(*ORDERS), replica_of(member).id[1]
    member.end.doubt(group, number, "it differs")
    await cluster.until(lambda: problem(member) == "the state is in doubt: it differs")
    assert member.host.reports()[ORDERS].damaged
    member.end.doubt(group, number, "")
    await cluster.until(lambda: problem(member) == "")
    member.end.doubt(group, number, "it differs")
    await cluster.until(lambda: problem(member) != "")
    await member.stop_machine()
    await member.start_machine()
    await cluster.until(lambda: replica_of(member).fit_to_lead)
    assert problem(member) == ""


async def test_an_unfit_state_is_not_led_from(new_cluster: NewCluster) -> None:
    """A state machine that is about to give its state up is relieved at once, and does not lead while that lasts."""
    cluster = await new_cluster("a", "b", "c")
    await cluster.begin("a", "b", "c")
    bad = cluster.leading()
    assert bad.end is not None
    bad.end.doubt(group_number(*ORDERS), replica_of(bad).id[1], "most have other rows", unfit=True)
    await cluster.until(lambda: cluster.leader() not in (None, bad))
    for _ in range(5):
        await pass_time(cluster, 1)
        assert cluster.leader() not in (None, bad)


async def test_what_was_asked_in_an_earlier_life_comes_to_nothing(new_cluster: NewCluster) -> None:
    """An answer, or a failure, that belongs to what was asked before the last opening or restoring changes nothing."""
    cluster = await new_cluster("a")
    await cluster.begin("a")
    await cluster.write(x="1")
    await cluster.equal("a", {"x": "1"})
    replica = replica_of(cluster["a"])
    applied = replica.node.applied
    late = [asyncio.get_running_loop().create_future() for _ in range(2)]
    late[0].set_exception(StateMachineError("from an earlier session"))
    late[1].set_result(applied + 5)
    for future in late:
        replica.applier._on_applied(replica.applier._session - 1, future)
    assert (replica.applier.attached, replica.applier.failing, problem(cluster["a"])) == (True, False, "")
    assert (replica.node.applied, replica.stopped) == (applied, False)
