"""What stores' reports cost the metastore."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping

from evenkeel.metastore.metastore_api import Delete, Put
from evenkeel.protocol.keys import LOAD_SLICE
from evenkeel.protocol.records import LoadSlice, StoreLoad, decode
from evenkeel_raft.agent.agent_settings import AgentSettings
from evenkeel_raft.agent.report_budget import LEAST_RATE, BudgetedReport, rough
from evenkeel_raft.agent.store_report import load_of, slices_of, with_tables
from evenkeel_raft.shared.raft_groups import GroupReport, Partition
from tests.protocol.support import KEYS

TABLE = "orders-of-the-last-years.0b1c2d3e-4f50-4a61-8b72-9c83ad94be05"
STORE = "evenkeel-main-17"
QUARTER = 900
"""Seconds of a quarter of an hour."""
SETTINGS = AgentSettings()


def replica(size: int, **changes: object) -> GroupReport:
    fields = {"leading": True, "term": 1, "log_bytes": size // 9, "applied": 1, "proposed_bytes": 0, "filling": {}}
    return GroupReport(**(fields | {"bytes": size} | changes))  # type: ignore[arg-type]


class Store:
    """A store that reports to its own metastore, in virtual time."""

    def __init__(self, *, stores: int = 1) -> None:
        self.rate = max(LEAST_RATE, SETTINGS.report_bytes_per_second / stores)
        self.paced = BudgetedReport(KEYS.load(STORE), rate=self.rate, now=0.0)
        self.kvs: dict[str, bytes] = {}
        self.now = 0.0
        self.lease = 1
        self.written = 0
        """Bytes of keys and values."""
        self.largest = 0
        """Bytes of the largest transaction."""

    def report(
        self,
        reports: Mapping[Partition, GroupReport],
        problems: Mapping[Partition, str] | None = None,
        *,
        older: bool = False,
    ) -> int:
        """Report after the usual time; returns how many keys were written."""
        self.now += SETTINGS.report_seconds
        rates = dict.fromkeys(reports, self.now)
        header = load_of(reports, rates=rates, problems=problems or {})
        header = with_tables(header, reports, rates=rates) if older else header
        slices = {} if older else slices_of(reports, keys=KEYS, store=STORE)
        count = 0
        for operations, done in self.paced.batches(header, slices, lease=self.lease, rate=self.rate, now=self.now):
            done()
            self._take(operations)
            count += len(operations)
        return count

    def _take(self, operations: tuple[Put | Delete, ...]) -> None:
        size = 0
        for operation in operations:
            if isinstance(operation, Put):
                self.kvs[operation.key] = operation.value
                size += len(operation.value)
            else:
                del self.kvs[operation.key]
            size += len(operation.key)
        self.written += size
        self.largest = max(self.largest, size)

    @property
    def header(self) -> StoreLoad:
        return decode(StoreLoad, self.kvs[KEYS.load(STORE)], key="")

    def sizes(self) -> dict[int, int]:
        return dict(self._pairs())

    def _pairs(self) -> Iterator[tuple[int, int]]:
        for key, value in self.kvs.items():
            if key != KEYS.load(STORE):
                yield from decode(LoadSlice, value, key=key).sizes


def test_a_busy_large_cluster_writes_less_than_200_megabytes_per_hour() -> None:
    """65,536 partitions of three replicas on 20 stores, all under write load and a hundred being copied."""
    rng, store = random.Random(1), Store(stores=20)
    partitions = rng.sample(range(65_536), 65_536 * 3 // 20)
    sizes = {Partition(TABLE, number): rng.uniform(1e6, 1e9) for number in partitions}
    reports = {partition: replica(round(size)) for partition, size in sizes.items()}
    filled, growing = sorted(sizes)[:100], sorted(sizes)[100:]
    for turn in range(QUARTER // 5):
        for partition in growing[turn % 12 :: 12]:
            sizes[partition] *= rng.uniform(1.0, 1.02)  # once a minute
            reports[partition] = replica(round(sizes[partition]))
        reports |= {p: replica(10**9, filling={"evenkeel-main-3": turn % 100 / 100}) for p in filled}
        store.report(reports)
    assert store.now == QUARTER
    assert store.written * 4 * 20 < 200e6
    reported = store.sizes()
    assert reported.keys() == set(partitions)
    errors = sorted(abs(reported[p.partition] / sizes[p] - 1) for p in growing)
    assert errors[len(errors) * 95 // 100] < 0.15


def test_no_value_approaches_etcds_limit() -> None:
    """A store with 65,536 replicas, of one or many tables, writes small values in small transactions."""
    one = {Partition(TABLE, number): replica(987_654_321_987) for number in range(65_536)}
    many = {Partition(f"{number % 64}{TABLE}", number // 64): replica(987_654_321_987) for number in range(65_536)}
    for reports in (one, many):
        store = Store()
        store.rate = 1e9
        while len(store.sizes()) < min(65_536, len({p.partition for p in reports})):
            store.report(reports)
        assert max(map(len, store.kvs.values())) < 30_000
        assert store.largest < 500_000
    assert len(store.kvs) == 1 + 64 * 1024 // LOAD_SLICE


def test_a_small_store_reports_every_time() -> None:
    """A small store never uses up its budget, so changes are reported within seconds."""
    store = Store(stores=5)
    for turn in range(1, 1000):
        reports = {Partition(TABLE, number): replica(1000 * 2 ** (turn % 20)) for number in range(100)}
        assert store.report(reports) == 2
        assert set(store.sizes().values()) == {rough(1000 * 2 ** (turn % 20))}


def test_small_changes_are_not_written() -> None:
    """A change of less than a tenth is not written, also where rounding would differ."""
    store = Store()
    reports = {Partition(TABLE, 0): replica(1_000_000)}
    store.report(reports)
    paced, header = store.paced, store.header
    key = KEYS.load_slice(STORE, TABLE, 0)
    for size, written in ((1_049_000, 0), (1_051_000, 0), (910_000, 0), (1_200_000, 1), (1_150_000, 0)):
        operations = [
            operation.key
            for batch, done in paced.batches(header, {key: {0: size}}, lease=1, rate=store.rate, now=store.now)
            for operation in (done(), *batch)
            if operation is not None
        ]
        assert operations == [key] * written


def test_urgent_changes_do_not_wait_for_the_budget() -> None:
    """Problems, damage and progress are reported at once without budget."""
    store = Store(stores=100)
    reports = {Partition(f"{TABLE}{number // 1024}", number % 1024): replica(number) for number in range(16_384)}
    store.report(reports)
    assert len(store.kvs) < 16
    bad = Partition(f"{TABLE}0", 5)
    store.report(reports | {bad: replica(5, damaged=True)}, {bad: "bad block"})
    assert store.header.damaged == (f"{TABLE}0/5",)
    assert store.header.problems == {f"{TABLE}0/5": "bad block"}
    store.report(reports | {bad: replica(5, filling={"s2": 0.5})})
    assert (store.header.problems, store.header.filling) == ({}, {f"{TABLE}0/5": {"s2": 0.5}})
    while len(store.kvs) < 17:
        store.report(reports)
    assert store.now < 900


def test_deleted_replicas_leave_no_key() -> None:
    """A slice is deleted with its last replica; a new lease gets all keys again."""
    store = Store()
    reports = {Partition(TABLE, number): replica(5) for number in (0, 5000)}
    store.report(reports)
    assert len(store.kvs) == 3
    del reports[Partition(TABLE, 5000)]
    store.report(reports)
    assert set(store.kvs) == {KEYS.load(STORE), KEYS.load_slice(STORE, TABLE, 0)}
    store.lease = 2
    assert store.report(reports) == 2


def test_urgent_changes_do_not_wait_in_the_older_format() -> None:
    """In the older format only sizes wait for the budget; the newer format starts without the older one's debt."""
    store, count = Store(stores=20), 20_000
    reports = {Partition(TABLE, number): replica(10**9 + number) for number in range(count)}
    written = sum(bool(store.report(reports, older=True)) for _ in range(100))
    assert written < 5
    problem = {Partition(TABLE, 7): "the state machine has lost its state"}
    assert store.report(reports, problem, older=True) == 1
    assert list(store.header.problems.values()) == list(problem.values())
    assert store.report(reports, problem) > 1
    assert store.header.tables == {}
