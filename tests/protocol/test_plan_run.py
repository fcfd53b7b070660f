"""Applying a plan to all partitions: batches, conflicts, fencing, successors."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable

import pytest

from evenkeel.errors import FencedError
from evenkeel.metastore.metastore_api import MAX_TXN_OPS, KeyValue, Put, Txn, TxnResult
from evenkeel.metastore.mvcc import Mvcc
from evenkeel.protocol.operator_decision import Case
from evenkeel.protocol.partition_view import PartitionView, read_partition
from evenkeel.protocol.plan_run import Batch, PlanRun
from evenkeel.protocol.records import Lock, Peer, Retarget, Stable, encode
from tests.protocol.support import KEYS, TABLE, holds, peers, put, queue, remove, shown_queue, targets

MANY = 10_000
OLD, NEW = "a1 b1 c1", "a b d"
BATCH = 64
"""Partitions without a change in progress that fit one transaction."""
CHANGING = 64
"""Partitions with a pending that fit one transaction."""


class Bench:
    """A table whose partitions are all at `OLD`, and an operator in charge."""

    def __init__(self, partitions: int) -> None:
        self.partitions = range(partitions)
        self.store = Mvcc(keep_history=False)
        self.epoch = holds(put(self.store, KEYS.epoch, "o1"))
        self.head = put(self.store, KEYS.plan_head(TABLE), "plan 2")
        stable = encode(Stable(peers(OLD)))
        for at in range(0, partitions, 100):
            numbers = range(at, min(at + 100, partitions))
            self.store.txn(Txn(success=tuple(Put(KEYS.partition(TABLE, p).stable, stable) for p in numbers)))

    def run(
        self,
        *,
        target: str = NEW,
        mode: Retarget = Retarget.ADJUST,
        gone: str = "",
        admitted: Iterable[int] | None = None,
    ) -> PlanRun:
        """Return a run of plan 2 with the given partitions admitted as they are now; by default all."""
        lost = {peer.id for peer in peers(gone)}

        def is_gone(peer: Peer) -> bool:
            return peer.id in lost

        wanted = targets(target)
        run = PlanRun(
            keys=KEYS,
            table=TABLE,
            plan=2,
            target=lambda _: wanted,
            mode=mode,
            epoch=self.epoch,
            head_mod=self.head.mod_revision,
            gone=is_gone,
        )
        run.admit(self.views(self.partitions if admitted is None else admitted), revision=self.store.revision)
        return run

    def found(self) -> dict[str, KeyValue]:
        return {kv.key: kv for kv in self.store.range(KEYS.root).kvs}

    def view(self, partition: int) -> PartitionView:
        return self.views([partition])[partition]

    def views(self, partitions: Iterable[int]) -> dict[int, PartitionView]:
        found = self.found()
        return {partition: read_partition(KEYS.partition(TABLE, partition), found) for partition in partitions}

    def lock(self, partition: int) -> None:
        """Change a partition as a leader would."""
        keys = KEYS.partition(TABLE, partition)
        pending = self.store.get(keys.pending)
        assert pending is not None
        put(self.store, keys.lock, Lock(token=pending.mod_revision, term=1))

    def begin_moves(self, partitions: Iterable[int], text: str = "a1 b1 e1") -> None:
        for partition in partitions:
            put(self.store, KEYS.partition(TABLE, partition).pending, queue(text))


def carry(bench: Bench, run: PlanRun, *, between: Callable[[Batch], None] = lambda _: None) -> list[Batch]:
    """Run all batches in sequence; call `between` after each is decided and before it is sent."""
    ran = []
    while (batch := run.next_batch()) is not None:
        between(batch)
        run.on_result(batch, bench.store.txn(batch.txn))
        ran.append(batch)
    return ran


def test_ten_thousand_partitions() -> None:
    """All partitions of a large table are written once each, in transactions within etcd's limits."""
    bench = Bench(MANY)
    run = bench.run()
    ran = carry(bench, run)
    assert run.done
    assert run.cases == {Case.STARTED: MANY}
    assert run.retried == 0
    assert len(ran) == -(-MANY // BATCH)
    assert max(len(batch.txn.compares) for batch in ran) <= MAX_TXN_OPS
    assert max(len(batch.txn.success) for batch in ran) <= MAX_TXN_OPS
    views = bench.views(bench.partitions).values()
    assert {shown_queue(view.pending) for view in views} == {"a1 b1 d2"}
    assert {view.trigger for view in views} == {2}


def test_a_batch_fills_the_limit() -> None:
    """With two operations per partition, one more partition would not fit; comparisons are shared."""
    bench = Bench(BATCH + 1)
    batch = bench.run().next_batch()
    assert batch is not None
    assert len(batch.partitions) == BATCH
    assert len(batch.txn.success) == 2 * BATCH
    assert len(batch.txn.success) + 2 > MAX_TXN_OPS
    assert len(batch.txn.compares) == 7
    assert batch.txn.compares[:2] == (bench.epoch, holds(bench.head))


def _write(bench: Bench, kind: str, partition: int) -> None:
    put(bench.store, getattr(KEYS.partition(TABLE, partition), kind), 1)


@pytest.mark.parametrize("kind", ["stable", "pending", "planned", "trigger", "lock"])
@pytest.mark.parametrize("partition", [0, 30, BATCH - 1])
def test_a_batch_is_refused_when_any_key_of_any_partition_was_written(kind: str, partition: int) -> None:
    """A key that was absent is compared too, from the first partition to the last."""
    bench = Bench(BATCH)
    batch = bench.run().next_batch()
    assert batch is not None
    _write(bench, kind, partition)
    assert not bench.store.txn(batch.txn).succeeded


@pytest.mark.parametrize("kind", ["stable", "pending", "planned", "trigger", "lock"])
def test_a_batch_ignores_other_partitions(kind: str) -> None:
    """Changes to partitions before and after a batch do not affect it."""
    bench = Bench(40)
    batch = bench.run(admitted=range(10, 30)).next_batch()
    assert batch is not None
    _write(bench, kind, 9)
    _write(bench, kind, 30)
    assert bench.store.txn(batch.txn).succeeded


def test_a_change_under_way_is_compared_as_it_was() -> None:
    """An existing pending must be unchanged, even if its successor is already deleted."""
    bench = Bench(3)
    bench.begin_moves([1])
    batch = bench.run().next_batch()
    assert batch is not None
    remove(bench.store, KEYS.partition(TABLE, 1).pending)
    assert not bench.store.txn(batch.txn).succeeded


@pytest.mark.parametrize("mode", Retarget)
def test_reading_again_stays_within_the_limit(mode: Retarget) -> None:
    """If a whole batch fails, its rereads and retries are still within etcd's limits, in every mode."""
    bench = Bench(CHANGING)
    bench.begin_moves(bench.partitions)
    run = bench.run(mode=mode)

    def disturb(batch: Batch) -> None:
        if batch.cases and not run.retried:
            for partition in batch.partitions:
                bench.lock(partition)

    for batch in carry(bench, run, between=disturb):
        sizes = (len(batch.txn.compares), len(batch.txn.success), len(batch.txn.failure))
        assert max(sizes) <= MAX_TXN_OPS
    assert run.cases == {Case.PLANNED: CHANGING}
    assert run.retried == CHANGING


def test_changed_partitions_are_decided_again() -> None:
    """Partitions that changed are decided again; the others keep their decision."""
    bench = Bench(100)
    bench.begin_moves(range(10))
    run = bench.run()
    disturbed = {3, 7}

    def disturb(batch: Batch) -> None:
        for partition in disturbed & set(batch.partitions):
            bench.lock(partition)
            disturbed.discard(partition)

    carry(bench, run, between=disturb)
    assert run.done
    assert run.retried == 2
    assert run.cases == {Case.STARTED: 90, Case.ADJUSTED: 8, Case.PLANNED: 2}
    assert shown_queue(bench.view(3).pending) == "a1 b1 e1"
    assert shown_queue(bench.view(4).pending) == "a1 b1 d2"
    assert {bench.view(p).trigger for p in range(100)} == {2}


def test_failed_batches_are_halved() -> None:
    """Under constant conflicts batches shrink until single partitions succeed."""
    bench = Bench(25)
    bench.begin_moves(bench.partitions)
    run = bench.run(mode=Retarget.CANCEL)

    def disturb(batch: Batch) -> None:
        if len(batch.cases) > 1:
            for partition in batch.partitions:
                keys = KEYS.partition(TABLE, partition)
                put(bench.store, keys.pending, queue("a1 b1 e1"))

    ran = carry(bench, run, between=disturb)
    sizes = [len(batch.partitions) for batch in ran if batch.cases]
    assert sizes[0] == 25
    assert 12 in sizes
    assert 6 in sizes
    assert sizes.count(1) == 25
    assert run.cases == {Case.PLANNED: 25}


def test_changes_between_a_batchs_partitions_do_not_starve_it() -> None:
    """Constant writes to partitions between those of a batch do not block it: the second attempt ignores them."""
    bench = Bench(1000)
    bench.begin_moves([500])
    run = bench.run(admitted=[*range(40), *range(900, 1000)])
    attempts = 0

    def disturb(_: Batch) -> None:
        nonlocal attempts
        attempts += 1
        assert attempts < 50
        bench.lock(500)

    carry(bench, run, between=disturb)
    assert run.done
    assert run.cases == {Case.STARTED: 140}
    assert run.retried == 0


@pytest.mark.parametrize("seed", range(3))
def test_constant_interference_never_loses_a_partition(seed: int) -> None:
    """With random locks and results in any order, every partition is handled exactly once."""
    rng = random.Random(seed)
    bench = Bench(300)
    bench.begin_moves(range(0, 300, 2))
    run = bench.run()
    flights: list[tuple[Batch, TxnResult]] = []
    while not run.done:
        batch = run.next_batch() if len(flights) < 8 else None
        if batch is not None:
            if rng.random() < 0.5:
                partition = rng.choice([p for p in batch.partitions if p % 2 == 0] or [0])
                if bench.view(partition).trigger == 0:
                    bench.lock(partition)
            flights.append((batch, bench.store.txn(batch.txn)))
        else:
            run.on_result(*flights.pop(rng.randrange(len(flights))))
    assert run.retried > 0
    assert run.cases.total() == 300
    assert run.cases[Case.STARTED] == 150
    views = [bench.view(p) for p in range(0, 300, 2)]
    assert Counter(view.lock is not None for view in views)[True] == run.cases[Case.PLANNED]
    assert all((view.planned is not None) == (view.lock is not None) for view in views)


def test_a_fenced_operator_stops() -> None:
    """Once the epoch has changed, nothing is written, and the run raises FencedError."""
    bench = Bench(2 * BATCH)
    run = bench.run()
    first = run.next_batch()
    assert first is not None
    run.on_result(first, bench.store.txn(first.txn))
    put(bench.store, KEYS.epoch, "o2")
    before = bench.store.revision
    second = run.next_batch()
    assert second is not None
    with pytest.raises(FencedError, match=f"{KEYS.epoch}.* has changed: another operator has taken over"):
        run.on_result(second, bench.store.txn(second.txn))
    assert bench.store.revision == before


def test_a_deleted_epoch_is_a_fence_too() -> None:
    """A deleted epoch key fences the run."""
    bench = Bench(1)
    run = bench.run()
    remove(bench.store, KEYS.epoch)
    batch = run.next_batch()
    assert batch is not None
    with pytest.raises(FencedError):
        run.on_result(batch, bench.store.txn(batch.txn))


def test_a_newer_plan_ends_the_run() -> None:
    """Once the head has changed, no batch is started and none is written; earlier writes stay."""
    bench = Bench(2 * BATCH)
    run = bench.run()
    batches = [run.next_batch(), run.next_batch()]
    for batch in batches[:1]:
        assert batch is not None
        run.on_result(batch, bench.store.txn(batch.txn))
    put(bench.store, KEYS.plan_head(TABLE), "plan 3")
    before = bench.store.revision
    assert batches[1] is not None
    run.on_result(batches[1], bench.store.txn(batches[1].txn))
    assert run.superseded
    assert run.done
    assert run.next_batch() is None
    assert bench.store.revision == before
    assert run.cases == {Case.STARTED: BATCH}


def test_a_superseded_run_stays_superseded() -> None:
    """A late result from before the newer plan does not resume a superseded run."""
    bench = Bench(2 * BATCH)
    bench.begin_moves([0])
    run = bench.run()
    early, late = run.next_batch(), run.next_batch()
    assert early is not None
    assert late is not None
    bench.lock(0)
    lost_a_race = bench.store.txn(early.txn)
    put(bench.store, KEYS.plan_head(TABLE), "plan 3")
    run.on_result(late, bench.store.txn(late.txn))
    assert run.superseded
    run.on_result(early, lost_a_race)
    assert run.superseded
    assert run.done
    assert run.next_batch() is None


@pytest.mark.parametrize("finished", [0, 1, 2])
def test_a_second_run_handles_only_the_rest(finished: int) -> None:
    """A successor with the same plan writes the remaining partitions and counts the others as handled."""
    bench = Bench(200)
    first = bench.run()
    for _ in range(finished):
        batch = first.next_batch()
        assert batch is not None
        assert bench.store.txn(batch.txn).succeeded
    mods = [bench.view(p).mods() for p in range(finished * BATCH)]
    second = bench.run()
    carry(bench, second)
    assert second.done
    expected = {Case.HANDLED: finished * BATCH, Case.STARTED: 200 - finished * BATCH}
    assert second.cases == {case: count for case, count in expected.items() if count}
    assert [bench.view(p).mods() for p in range(finished * BATCH)] == mods


def test_a_transaction_of_unknown_outcome_is_harmless() -> None:
    """A batch that arrives after a second run has redone it changes nothing."""
    bench = Bench(BATCH)
    late = bench.run().next_batch()
    assert late is not None
    carry(bench, bench.run())
    before = bench.store.revision
    assert not bench.store.txn(late.txn).succeeded
    assert bench.store.revision == before


def test_handled_partitions_cost_no_transaction() -> None:
    """A plan that is applied again writes nothing."""
    bench = Bench(100)
    carry(bench, bench.run())
    again = bench.run()
    assert carry(bench, again) == []
    assert again.done
    assert again.cases == {Case.HANDLED: 100}


def test_partitions_are_admitted_in_parts() -> None:
    """Partitions that are not admitted are not written; the run continues when they are admitted."""
    bench = Bench(100)
    run = bench.run(admitted=())
    assert run.done
    for part in (range(30), range(30, 100)):
        run.admit(bench.views(part), revision=bench.store.revision)
        assert not run.done
        carry(bench, run)
        assert run.done
        assert run.cases == {Case.STARTED: part.stop}


def test_refused_partitions_do_not_block_others() -> None:
    """A partition that is not ready is counted as such and left out of its batch."""
    bench = Bench(30)
    remove(bench.store, KEYS.partition(TABLE, 17).stable)
    run = bench.run()
    ran = carry(bench, run)
    assert run.done
    assert run.cases == {Case.STARTED: 29, Case.NOT_READY: 1}
    assert all(17 not in batch.partitions for batch in ran)


def test_a_plan_without_voters_is_written_nowhere() -> None:
    """A target of learners only costs no transaction, and is counted for every partition."""
    bench = Bench(30)
    run = bench.run(target="a* b*")
    assert carry(bench, run) == []
    assert run.cases == {Case.EMPTY_TARGET: 30}


def test_lost_replicas_are_passed_to_the_decision() -> None:
    """The run passes `gone` on: in Cancel only changes that name a lost replica are overwritten."""
    bench = Bench(4)
    bench.begin_moves([0, 1], "a1 b1 e1")
    bench.begin_moves([2, 3], "a1 b1 f1")
    run = bench.run(mode=Retarget.CANCEL, gone="f1")
    carry(bench, run)
    assert run.cases == {Case.PLANNED: 2, Case.ADJUSTED: 2}
    assert shown_queue(bench.view(0).pending) == "a1 b1 e1"
    assert shown_queue(bench.view(2).pending) == "a1 b1 d2"
