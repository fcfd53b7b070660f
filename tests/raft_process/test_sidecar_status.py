"""Status, readiness and metrics of a sidecar."""

from __future__ import annotations

import asyncio

import prometheus_client.parser as prometheus

from evenkeel.errors import DisconnectedError
from evenkeel.protocol.group_configuration import Configuration
from evenkeel.protocol.records import ReplicaId, StoreLoad, decode
from evenkeel.protocol.replica_decision import Start
from evenkeel_raft.errors import DiskFullError
from evenkeel_raft.process.metrics import Metrics
from evenkeel_raft.process.sidecar_status import SidecarStatus, encode, status_of, unready
from evenkeel_raft.shared.raft_groups import Partition
from tests.protocol.support import KEYS
from tests.raft_host.support import ORDERS
from tests.raft_process.support import Sidecar


async def fetch_status(sidecar: Sidecar) -> SidecarStatus:
    return await status_of(sidecar.host, sidecar.agent, version="9")


async def test_a_sidecar_at_rest(sidecar: Sidecar) -> None:
    """An idle sidecar is ready and follows the metastore."""
    await sidecar.cluster.until(lambda: sidecar.agent.status().state == "following")
    await sidecar.cluster.until(lambda: sidecar.host.status.machine_connected)
    status = await fetch_status(sidecar)
    assert (status.store, status.version, status.ready, status.why) == ("a", "9", True, "")
    assert (status.metastore, status.metastore_why, status.state_machine) == ("following", "", "connected")
    assert (status.replicas, status.problems, status.disk_full, status.awake) == ([], {}, "", 0)
    assert encode(status).startswith(b'{"store":"a","volume":"')


async def test_members_of_a_replica(sidecar: Sidecar) -> None:
    """A leader reports its members and their progress."""
    await sidecar.cluster.begin("a", "b")
    (replica,) = (await fetch_status(sidecar)).replicas
    assert (replica.table, replica.partition, replica.replica) == (*ORDERS, 1)
    assert replica.members == {"a": "voter", "b": "voter"}
    assert replica.leader in ("a", "b")
    assert replica.stage == ("none" if replica.leader == "a" else "")
    assert replica.caught_up


async def test_how_long_rounds_take(sidecar: Sidecar) -> None:
    """The histogram counts every write round of the log."""
    await sidecar.cluster.begin("a", "b")
    text = Metrics(sidecar.host, sidecar.agent).render().decode()
    [times] = [
        f for f in prometheus.text_string_to_metric_families(text) if f.name == "evenkeel_raft_log_round_seconds"
    ]
    found = {sample.labels.get("le", sample.name.rpartition("_")[2]): sample.value for sample in times.samples}
    assert found["count"] == found["+Inf"] == sum(sidecar.host.status.round_times.counts) > 0
    assert found["0.0005"] <= found["1.0"] <= found["+Inf"]
    assert found["sum"] > 0


async def test_readiness_waits_for_the_state_machine(sidecar: Sidecar) -> None:
    """A state machine that is gone, hangs or lacks the group makes the store unready."""
    cluster, store, host = sidecar.cluster, sidecar.store, sidecar.host
    await cluster.begin("a", "b")
    await cluster.until(lambda: unready(host) == "")
    await store.stop_machine()
    assert unready(host) == "the state machine is not connected"
    assert (await fetch_status(sidecar)).state_machine == "gone"
    await store.start_state_machine(hold={"open"})
    await cluster.until(lambda: host.status.machine_connected)
    assert unready(host) == "1 replicas have not caught up: orders.1/0"
    store.machine.release()
    await cluster.until(lambda: unready(host) == "")
    store.machine.hold = {"open"}
    await cluster.until(lambda: unready(host) == "the state machine does not answer")
    assert (await fetch_status(sidecar)).state_machine == "silent"


async def test_readiness_waits_for_what_others_have_committed(sidecar: Sidecar) -> None:
    """A voter that knows of committed entries it does not have is unready."""
    cluster, host = sidecar.cluster, sidecar.host
    await cluster.begin("a", "b")
    await cluster.until(lambda: unready(host) == "")
    await cluster.until(lambda: cluster.leader() is not None)
    if cluster.leading().name == "a":
        view = cluster["a"].view
        assert view is not None
        host.transfer(ORDERS, next(peer.id for peer in view.applied.peers if peer.store == "b"))
        await cluster.until(lambda: cluster.leader() is not None and cluster.leading().name == "b")
    await cluster.until(lambda: unready(host) == "")
    [replica] = host._replicas.by_group.values()
    raft = replica.node._raft
    raft.leader_commit = raft.log.committed + 2
    assert unready(host) == "1 replicas have not caught up: orders.1/0"
    await cluster.write(x="1")
    await cluster.write(x="2")
    await cluster.until(lambda: unready(host) == "")


async def test_a_group_that_has_just_begun_is_no_problem(sidecar: Sidecar) -> None:
    """A missing leader is a problem only after three election timeouts."""
    cluster, host = sidecar.cluster, sidecar.host
    peers = tuple(cluster[name].peer() for name in "ab")
    await host.start(ORDERS, Start(peers[0], Configuration(peers)))
    began = cluster.clock.now()
    assert host.reports()[ORDERS].problem == ""
    await cluster.until(lambda: "no leader" in host.reports()[ORDERS].problem)
    assert cluster.clock.now() - began > 3 * cluster["a"].settings.election_seconds


async def test_readiness_waits_for_a_leader_and_for_disk_space(sidecar: Sidecar) -> None:
    """A voter without a leader, or a full disk, makes the store unready."""
    cluster, host = sidecar.cluster, sidecar.host
    await cluster.begin("a", "b")
    host._on_full(DiskFullError("no room for another byte"))
    assert unready(host) == "no room for another byte"
    assert (await fetch_status(sidecar)).disk_full == "no room for another byte"
    host._on_full(None)
    await cluster.until(lambda: unready(host) == "")
    await cluster["b"].stop()
    await cluster.until(lambda: unready(host) == "1 replicas have not caught up: orders.1/0")
    await cluster.until(lambda: "no leader" in host.reports()[ORDERS].problem)
    assert (await fetch_status(sidecar)).problems == {"orders.1/0": host.reports()[ORDERS].problem}


async def test_peers_say_why_not(sidecar: Sidecar) -> None:
    """Each peer is connected or has a reason."""
    cluster, host = sidecar.cluster, sidecar.host
    await cluster.until(lambda: host.status.peer_states() == {"b": "connected"})
    host.set_peers({"b": cluster["b"].address._replace(volume="another")})
    await cluster.until(lambda: "volume" in host.status.peer_states()["b"])
    assert "expects volume another" in (await fetch_status(sidecar)).peers["b"]


async def test_counters(sidecar: Sidecar) -> None:
    """Counters increase with activity."""
    cluster = sidecar.cluster
    await cluster.begin("a", "b")
    sidecar.host.set_leadership_inhibited(cluster.leader() is sidecar.store)
    await cluster.until(lambda: cluster.leader() is cluster["b"])
    sidecar.host.set_leadership_inhibited(False)
    assert cluster["b"].host.transfer(ORDERS, ("a", 1))
    await cluster.until(lambda: cluster.leader() is sidecar.store)
    await cluster.write(x="1")
    figures: dict[str, float] = {}
    text = Metrics(sidecar.host, sidecar.agent).render().decode()
    for family in prometheus.text_string_to_metric_families(text):
        figures |= {sample.name.removeprefix("evenkeel_raft_"): sample.value for sample in family.samples}
    assert (figures["replicas"], figures["leaders"], figures["state_machine_connected"]) == (1, 1, 1)
    assert (figures["proposals_total"], figures["troubled_groups"], figures["disk_full"]) == (1, 0, 0)
    assert figures["applied_entries_total"] >= 1
    assert figures["elections_won_total"] >= 1
    assert figures["log_rounds_total"] > 1
    assert (figures["peers"], figures["connected_peers"]) == (1, 1)


async def test_problems_of_the_agent_are_listed(sidecar: Sidecar) -> None:
    """A failed deletion is listed as a problem."""
    cluster, host = sidecar.cluster, sidecar.host
    await cluster.begin("a")
    host.destroy = _cannot  # type: ignore[method-assign]
    for _ in range(6):
        await sidecar.agent._replicas.destroy(ORDERS, ("a", 1))
    assert "deleting the replica failed: nobody there" in (await fetch_status(sidecar)).problems["orders.1/0"]


async def _cannot(partition: Partition, replica: ReplicaId) -> None:
    raise DisconnectedError("nobody there")


async def test_wall_clocks_that_differ(sidecar: Sidecar) -> None:
    """Status, metrics and the store's report show the clock difference, and its end."""
    cluster = sidecar.cluster
    await cluster.until(lambda: sidecar.agent.status().state == "following" and sidecar.host.peers.skews())
    assert (await fetch_status(sidecar)).clock_ahead == 0

    async def reported() -> int:
        kv = await sidecar.metastore.get(KEYS.load("a"))
        return decode(StoreLoad, kv.value, key=kv.key).clock_ahead if kv is not None else 0

    sidecar.store.clock_ahead = 2 * 86_400.0
    await cluster.until(lambda: sidecar.host.clock_ahead() == 2 * 86_400)
    status = await fetch_status(sidecar)
    assert (status.clock_ahead, status.clock_skews) == (172_800, {"b": -172_800.0})
    text = Metrics(sidecar.host, sidecar.agent).render().decode()
    assert 'evenkeel_raft_clock_skew_seconds{peer="b"} -172800.0' in text
    assert "evenkeel_raft_clock_ahead_seconds 172800.0" in text
    for expected, ahead in ((172_800, 2 * 86_400.0), (0, 0.0)):
        sidecar.store.clock_ahead = ahead
        async with asyncio.timeout(60):
            while await reported() != expected:
                until = cluster.clock.now() + 1
                await cluster.until(lambda until=until: cluster.clock.now() > until)  # type: ignore[misc]
