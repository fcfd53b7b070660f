"""Leader records and store reports."""

from __future__ import annotations

import msgspec
import pytest

from evenkeel.protocol.leader_decision import GroupView
from evenkeel.protocol.records import ClusterVersion, GroupLoad, Leader, LoadSlice, StoreLoad, decode, encode
from evenkeel_raft.agent.agent_settings import AgentSettings, Tuning
from evenkeel_raft.agent.report_budget import rough
from evenkeel_raft.agent.store_report import CopyRate, StallDetector, load_of, with_tables
from evenkeel_raft.shared.raft_groups import GroupReport, Partition
from tests.protocol.support import KEYS
from tests.raft_agent.cluster import NO_SWEEP, P0, TABLE, Cluster, StoreProcess, puts, writes
from tests.raft_agent.model import ModelGroups
from tests.raft_agent.test_moves import ready


def load(cluster: Cluster, store: str) -> StoreLoad | None:
    kv = cluster.now(KEYS.load(store))
    return None if kv is None else decode(StoreLoad, kv.value, key=kv.key)


def sizes(cluster: Cluster, store: str) -> dict[int, int] | None:
    kv = cluster.now(KEYS.load_slice(store, *P0))
    return None if kv is None else dict(decode(LoadSlice, kv.value, key=kv.key).sizes)


async def test_a_new_leader_is_reported() -> None:
    """Each new leader writes a record with its term."""
    async with await ready("a b c", "a b c") as cluster:
        await cluster.until(lambda: cluster.reported() is not None)
        first = cluster.reported()
        await cluster[cluster.leader()].kill()
        await cluster.until(lambda: cluster.reported() != first)
        leader = cluster.network.leader(P0)
        assert leader is not None
        assert cluster.reported() == Leader(leader.id[0], leader.term)


async def test_a_leader_is_reported_once_it_has_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader that has not committed in its term may have been replaced."""
    leading = ModelGroups.leading

    def unsure(groups: ModelGroups, partition: Partition) -> GroupView | None:
        group = leading(groups, partition)
        return None if group is None else msgspec.structs.replace(group, committed_in_term=False)

    monkeypatch.setattr(ModelGroups, "leading", unsure)
    async with Cluster("a b c") as cluster:
        await cluster.create("a b c")
        await cluster.until(lambda: cluster.leader() != "")
        await cluster.pass_time(5)
        assert cluster.reported() is None
        monkeypatch.undo()
        cluster[cluster.leader()].groups.on_change(P0)
        await cluster.until(lambda: cluster.reported() is not None)


async def test_an_older_term_never_replaces_a_newer_one() -> None:
    """A write in flight when the next leader reported is rejected and not retried."""
    async with Cluster("a b c") as cluster:
        for store in cluster.stores.values():
            store.way.hold = writes("leaders")
        await cluster.create("a b c")
        await cluster.until(lambda: any(store.way.holding for store in cluster.stores.values()))
        late = cluster[cluster.leader()]
        for store in cluster.stores.values():
            if store is not late:
                store.way.hold = lambda _: False
        cluster.network.cut = {late.name}
        await cluster.until(lambda: cluster.reported() is not None)
        newer = cluster.reported()
        late.way.hold = lambda _: False
        late.way.release()
        await cluster.pass_time(5)
        assert cluster.reported() == newer
        assert newer is not None
        assert newer.store != late.name


async def test_a_newer_term_is_reported_after_an_older_one() -> None:
    """A store that regained leadership while its first write was in flight writes the new term afterwards."""
    async with Cluster("a b c") as cluster:
        for store in cluster.stores.values():
            store.way.hold = writes("leaders")
        await cluster.create("a b c")
        await cluster.until(lambda: any(store.way.holding for store in cluster.stores.values()))
        leader = cluster[cluster.leader()]
        assert cluster.network.elect(leader.groups.running()[P0], P0)
        await cluster.pass_time(2)
        leader.way.hold = lambda _: False
        leader.way.release()
        replica = leader.disk.replicas[P0]
        await cluster.until(lambda: cluster.reported() == Leader(leader.name, replica.term), seconds=1)
        assert replica.term == 2


async def test_one_conflict_does_not_block_the_batch() -> None:
    """One conflict in a batch of sixty does not block the others."""
    async with Cluster("a") as cluster:
        cluster["a"].way.hold = writes("leaders")
        await cluster.create(*["a"] * 60)
        await cluster.until(lambda: cluster["a"].way.holding == 1)
        await cluster.put(KEYS.leader(TABLE, 7), Leader("x", 99))
        before = len([txn for txn in cluster["a"].way.txns if writes("leaders")(txn)])
        cluster["a"].way.hold = lambda _: False
        cluster["a"].way.release()
        partitions = [Partition(TABLE, p) for p in range(60)]
        await cluster.until(lambda: all(cluster.reported(p) is not None for p in partitions))
        assert cluster.reported(Partition(TABLE, 7)) == Leader("x", 99)
        made = [txn for txn in cluster["a"].way.txns if writes("leaders")(txn)][before:]
        assert [len(txn.success) for txn in made] == [59]


async def test_a_report_that_an_older_one_got_ahead_of_is_made_again() -> None:
    """A conflicting record of a lower term is replaced at once."""
    async with Cluster("a") as cluster:
        cluster["a"].way.hold = writes("leaders")
        await cluster.create("a")
        await cluster.until(lambda: cluster["a"].way.holding == 1)
        await cluster.put(KEYS.leader(*P0), Leader("x", 0))
        cluster["a"].way.hold = lambda _: False
        cluster["a"].way.release()
        await cluster.until(lambda: cluster.reported() == Leader("a", 1), seconds=1)


async def test_nothing_is_reported_of_a_table_that_is_gone() -> None:
    """A write that arrives after the drop leaves no key behind."""
    async with Cluster("a b c") as cluster:
        for store in cluster.stores.values():
            store.way.hold = writes("leaders")
        await cluster.create("a b c")
        await cluster.until(lambda: any(store.way.holding for store in cluster.stores.values()))
        await cluster.drop()
        for store in cluster.stores.values():
            store.way.hold = lambda _: False
            store.way.release()
        await cluster.pass_time(5)
        assert cluster.reported() is None


async def test_a_malformed_report_is_replaced() -> None:
    """Any term replaces a malformed record."""
    async with Cluster("a b c") as cluster:
        await cluster.put(KEYS.leader(*P0), "nonsense")
        await cluster.create("a b c")
        await cluster.until(lambda: cluster.settled("a b c"))
        await cluster.until(lambda: b"nonsense" not in cluster.now(KEYS.leader(*P0)).value)  # type: ignore[union-attr]


async def test_load_is_reported_while_it_changes() -> None:
    """The report has sizes, rates, leaders and snapshot transfers under the store's lease;

    an idle store writes nothing.
    """
    async with await ready("a b c d", "a b c") as cluster:
        await cluster.put(KEYS.version, ClusterVersion(2))
        leader = cluster[cluster.leader()]
        await cluster.until(lambda: load(cluster, leader.name) is not None)
        await cluster.pass_time(10)
        written = len([txn for txn in leader.way.txns if puts("load")(txn)])
        await cluster.pass_time(30)
        assert len([txn for txn in leader.way.txns if puts("load")(txn)]) == written
        leader.groups.proposed[P0] = 50_000
        leader.groups.sizes[P0] = 123_456
        cluster.network.held = {"d"}
        await cluster.retarget("a b c d")
        await cluster.until(lambda: bool(load(cluster, leader.name).filling))  # type: ignore[union-attr]
        reported = load(cluster, leader.name)
        assert reported is not None
        assert (reported.replicas, reported.leading) == (1, 1)
        assert 9_000 <= reported.bytes_per_second <= 10_000
        assert sizes(cluster, leader.name) == {0: rough(leader.groups.sizes[P0])}
        assert reported.filling == {f"{TABLE}/0": {"d": 0.0}}
        await leader.kill()
        await cluster.until(lambda: load(cluster, leader.name) is None)
        assert sizes(cluster, leader.name) is None


async def test_everything_is_in_one_value_until_all_parts_know_slices() -> None:
    """Clusters of the first version use the older format; the next version replaces it."""
    async with await ready("a b c", "a b c") as cluster:
        for store in cluster.stores.values():
            store.groups.sizes[P0] = 777
        await cluster.until(lambda: load(cluster, "a") is not None and load(cluster, "a").tables != {})  # type: ignore[union-attr]
        [group] = load(cluster, "a").tables[TABLE]  # type: ignore[union-attr]
        assert (group.partition, group.bytes, sizes(cluster, "a")) == (0, 780, None)
        await cluster.put(KEYS.version, ClusterVersion(2))
        await cluster.until(lambda: sizes(cluster, "a") == {0: 780} and load(cluster, "a").tables == {})  # type: ignore[union-attr]


async def test_a_stalled_transfer_is_a_problem() -> None:
    """A stalled transfer is counted and reported until it makes progress."""
    async with await ready("a b c d", "a b c") as cluster:
        leader = cluster[cluster.leader()]
        cluster.network.held = {"d"}
        await cluster.retarget("a b c d")
        await cluster.pass_time(25)
        assert leader.agent.status().problems == {}
        await cluster.pass_time(20)
        text = "snapshot transfer to d stalled at 0%"
        assert leader.agent.status().problems == {P0: text}
        assert leader.agent.status().counters.failures["catch-up"] == 1
        reported = load(cluster, leader.name)
        assert reported is not None
        assert reported.problems == {f"{TABLE}/0": text}
        cluster.network.held = set()
        await cluster.until(lambda: cluster.settled("a b c d"))
        await cluster.pass_time(6)
        assert leader.agent.status().problems == {}


async def test_a_leader_hands_over_after_a_stalled_transfer() -> None:
    """With the setting, each voter leads in turn."""
    patient = msgspec.structs.replace(NO_SWEEP, step_down_when_stalled=True)
    async with Cluster("a b c d", settings=patient) as cluster:
        await cluster.create("a b c")
        await cluster.until(lambda: cluster.settled("a b c"))
        cluster.network.held = {"d"}
        await cluster.retarget("a b c d")
        led = {cluster.leader()}
        for _ in range(15):
            await cluster.pass_time(10)
            led.add(cluster.leader())
        assert led == {"a", "b", "c"}
        assert sum(store.agent.status().counters.transfers["stalled"] for store in cluster.stores.values()) >= 2
        cluster.network.held = set()
        await cluster.until(lambda: cluster.settled("a b c d"))


async def test_problems_of_the_host_are_reported() -> None:
    """The host's problem of a group is reported."""
    async with await ready("a b c", "a b c") as cluster:
        cluster["a"].groups.problems[P0] = "no quorum"
        await cluster.until(lambda: load(cluster, "a") is not None and load(cluster, "a").problems != {})  # type: ignore[union-attr]
        assert load(cluster, "a").problems == {f"{TABLE}/0": "no quorum"}  # type: ignore[union-attr]


def report(**changes: object) -> GroupReport:
    fields = {"leading": True, "term": 1, "log_bytes": 0, "applied": 1, "proposed_bytes": 0, "filling": {}}
    return GroupReport(**(fields | changes))  # type: ignore[arg-type]


def test_numbers_have_two_significant_digits() -> None:
    """Small changes do not change the report."""
    reports = {P0: report(log_bytes=123_456, bytes=777), Partition(TABLE, 1): report(log_bytes=99, leading=False)}
    made = with_tables(load_of(reports, rates={P0: 1234.5}, problems={}), reports, rates={P0: 1234.5})
    assert made.tables[TABLE] == (GroupLoad(0, True, 120_000, 1200, 780), GroupLoad(1, False, 99, 0))
    assert (made.replicas, made.leading, made.log_bytes, made.bytes_per_second) == (2, 1, 120_000, 1200)


def test_damaged_partitions_are_listed() -> None:
    """Partitions with damaged state are listed separately from other problems."""
    reports = {P0: report(problem="it stands still"), Partition(TABLE, 1): report(problem="bad block", damaged=True)}
    made = load_of(reports, rates={}, problems={partition: found.problem for partition, found in reports.items()})
    assert made.damaged == (f"{TABLE}/1",)
    assert made.problems == {f"{TABLE}/0": "it stands still", f"{TABLE}/1": "bad block"}


def test_a_stall_is_reported_once() -> None:
    """A stall is measured from the last progress and reported once; progress or the end of the transfer clears it."""
    stalls = StallDetector(Tuning(AgentSettings(stalled_seconds=30)))

    def check(now: float, **filling: float) -> int:
        return len(stalls.check({P0: report(filling=filling)}, now=now))

    assert [
        check(0, d=0.1),
        check(29, d=0.1, e=0.5),
        check(30, d=0.1, e=0.5),
        check(31, d=0.1, e=0.5),
    ] == [0, 0, 1, 0]
    assert dict(stalls.problems()) == {P0: "snapshot transfer to d stalled at 10%"}
    assert check(60, d=0.2, e=0.5) == 1
    assert dict(stalls.problems()) == {P0: "snapshot transfer to e stalled at 50%"}
    assert check(61) == 0
    assert dict(stalls.problems()) == {}


def test_restoring_takes_longer() -> None:
    """The progress of a restore is unknown, so its timeout is ten times longer."""
    stalls = StallDetector(Tuning(AgentSettings(stalled_seconds=30)))
    reports = {P0: report(filling={"d": 1.0})}
    assert [stalls.check(reports, now=now) for now in (0, 299, 300)] == [[], [], [P0]]
    assert dict(stalls.problems()) == {P0: "snapshot restore stalled on d: all data received, not restored"}


def test_a_report_stays_small() -> None:
    """The number and length of reported problems are limited."""
    filling = {f"store-{number}": number / 65_536 for number in range(3)}
    reports = {
        Partition(TABLE, number): GroupReport(False, 1, 10**9, 5, 10**9, filling, damaged=True)
        for number in range(65_536)
    }
    problems = dict.fromkeys(reports, "the state machine says: " + "x" * 10_000)
    report = load_of(reports, rates={}, problems=problems)
    assert (len(report.problems), len(report.filling)) == (500, 100)
    assert len(encode(report)) < 400_000
    assert report.problems[f"{TABLE}/0"].endswith(" ...")


async def test_a_rejected_report_stops_nothing() -> None:
    """The agent continues when its report is rejected."""
    async with await ready("a b c d", "a b c") as cluster:
        for store in cluster.stores.values():
            store.way.refuse = writes("load")
        sessions = [store.agent.status().counters.sessions for store in cluster.stores.values()]
        await cluster.pass_time(20)
        assert all(store.agent.status().counters.transactions["load", "refused"] for store in cluster.stores.values())
        assert [store.agent.status().counters.sessions for store in cluster.stores.values()] == sessions
        await cluster.retarget("a b d")
        await cluster.until(lambda: cluster.settled("a b d"))


async def test_a_leader_that_lost_its_quorum_withdraws_its_report() -> None:
    """The record is deleted soon after the leader stepped down, and written again by the next leader."""
    async with await ready("a b c", "a b c") as cluster:
        await cluster.until(lambda: cluster.reported() is not None)
        leader = cluster.leader()
        others = [store for name, store in cluster.stores.items() if name != leader]
        for store in others:
            await store.kill()
        await cluster.until(lambda: cluster.reported() is None, seconds=NO_SWEEP.withdraw_seconds + 1)
        others[0].start()
        await cluster.until(lambda: cluster.reported() is not None, seconds=5)


async def test_a_process_withdraws_the_report_of_its_predecessor() -> None:
    """A leader restarted without a quorum reads the record that names it and deletes it."""
    async with await ready("a b c", "a b c") as cluster:
        await cluster.until(lambda: cluster.reported() is not None)
        leader = cluster[cluster.leader()]
        for store in cluster.stores.values():
            await store.kill()
        await cluster.pass_time(1)
        assert cluster.reported() is not None
        leader.start()
        await cluster.until(lambda: cluster.reported() is None, seconds=NO_SWEEP.withdraw_seconds + 1)
        for store in cluster.stores.values():
            if store is not leader:
                store.start()
        await cluster.until(lambda: cluster.reported() is not None, seconds=5)


async def test_a_report_stays_while_another_replica_leads() -> None:
    """A transfer replaces the record in one write; it is never absent."""
    async with await ready("a b c", "a b c") as cluster:
        await cluster.until(lambda: cluster.reported() is not None)
        leader = cluster[cluster.leader()]
        leader.agent.inhibit_leadership("test")
        missing: list[float] = []

        def moved() -> bool:
            missing.extend([cluster.clock.now()] if cluster.reported() is None else [])
            found = cluster.reported()
            return found is not None and found.store != leader.name

        await cluster.until(moved)
        await cluster.pass_time(2 * NO_SWEEP.withdraw_seconds)
        assert not missing
        assert not any("withdraw" in what for store in cluster.stores.values() for what, _ in counted(store))


def counted(store: StoreProcess) -> list[tuple[str, str]]:
    """The kinds and outcomes of the transactions that a store's agent made."""
    return list(store.agent.status().counters.transactions)


async def test_a_leader_that_cannot_serve_withdraws_its_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sole replica without state leads in raft but has no record; the record returns with the state."""
    leading = ModelGroups.leading
    async with await ready("a", "a") as cluster:
        await cluster.until(lambda: cluster.reported() is not None)
        before, groups = cluster.reported(), cluster["a"].groups
        monkeypatch.setattr(ModelGroups, "leading", lambda *_: None)
        groups.on_change(P0)
        await cluster.until(lambda: cluster.reported() is None, seconds=NO_SWEEP.withdraw_seconds + 1)
        monkeypatch.setattr(ModelGroups, "leading", leading)
        groups.on_change(P0)
        await cluster.until(lambda: cluster.reported() == before, seconds=1)


async def test_a_report_that_lands_late_is_withdrawn() -> None:
    """A record written after its leader stepped down is deleted."""
    async with Cluster("a b c") as cluster:
        for store in cluster.stores.values():
            store.way.hold = writes("leaders")
        await cluster.create("a b c")
        await cluster.until(lambda: any(store.way.holding for store in cluster.stores.values()))
        late = cluster[cluster.leader()]
        for store in cluster.stores.values():
            if store is not late:
                await store.kill()
        await cluster.pass_time(2 * NO_SWEEP.withdraw_seconds)
        late.way.hold = lambda _: False
        late.way.release()
        await cluster.until(lambda: ("leader", "done") in counted(late))
        await cluster.until(lambda: cluster.reported() is None, seconds=1)


async def test_an_older_operator_finds_everything_in_one_value() -> None:
    """Reports are split only in a cluster whose components all support it."""
    async with await ready("a b c", "a b c") as cluster:
        leader = cluster[cluster.leader()]
        leader.groups.sizes[P0] = 123_456
        await cluster.until(lambda: bool((found := load(cluster, leader.name)) and found.tables))
        await cluster.pass_time(10)
        assert sizes(cluster, leader.name) is None
        await cluster.put(KEYS.version, ClusterVersion(2))
        await cluster.until(lambda: sizes(cluster, leader.name) == {0: rough(123_456)})
        found = load(cluster, leader.name)
        assert found is not None
        assert found.tables == {}


def test_the_rate_of_copies_is_that_of_the_time_they_took() -> None:
    """Pauses do not count, small amounts are no measurement, and newer measurements weigh more."""
    copies = CopyRate()
    copies.update((0, 0.0))
    copies.update((1000, 0.1))
    assert copies.bytes_per_second is None
    copies.update((60_000_000, 60.0))
    assert copies.bytes_per_second == 1e6
    copies.update((60_000_000, 60.0))
    assert copies.bytes_per_second == 1e6
    copies.update((120_000_000, 90.0))
    assert copies.bytes_per_second == 1.5e6
    copies.update((120_000_000, 200.0))
    assert copies.bytes_per_second == 0.0


async def test_the_rate_of_copies_is_reported() -> None:
    """The rate is reported after the first copy to the store."""
    async with await ready("a b c", "a b c") as cluster:
        await cluster.until(lambda: load(cluster, "a") is not None)
        assert load(cluster, "a").copied_per_second is None  # type: ignore[union-attr]
        cluster["a"].groups.copied = (20_000_000, 10.0)
        await cluster.until(lambda: load(cluster, "a").copied_per_second == 2_000_000)  # type: ignore[union-attr]
