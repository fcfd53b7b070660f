"""Estimated sizes match the snapshots that a move copies."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from evenkeel_store.engine.database import Cursor
from evenkeel_store.engine.size_estimator import SizeEstimator
from evenkeel_store.engine.snapshot_files import write_files
from evenkeel_store.engine.snapshot_throttle import SnapshotThrottle
from tests.store.support import GROUP, KEYED, PLAIN, Bench, append, columns, delete, upsert

Row = dict[str, Any]
STEP = 20_000


class Measured:
    """One group, measured after each fold as in a store, and its snapshots."""

    def __init__(self, directory: Path) -> None:
        self.bench = Bench(directory)
        self.estimator = SizeEstimator(self.bench.engine.database, full=lambda: "")
        self.reports = 0
        self._directory = directory
        self.bench.open()

    def apply(self, *entries: bytes) -> None:
        self.bench.apply(*entries)
        self.reports += self.estimator.measure(self.bench.group, written=self.bench.fold())

    def snapshot(self) -> int:
        """Return the bytes of a snapshot's files."""
        directory = self._directory / "snapshot"
        directory.mkdir(exist_ok=True)
        group = self.bench.group
        cursor = self.bench.engine.database.cursor()
        names = write_files(cursor, group.layout, group.kept(), directory, throttle=SnapshotThrottle())
        cursor.close()
        return sum((directory / name).stat().st_size for name in names)

    def error(self) -> float:
        """Return the relative error of the estimate."""
        size = self.bench.group.size
        assert size is not None
        return abs(size / self.snapshot() - 1)


@pytest.fixture
def measured(tmp_path: Path) -> Iterator[Measured]:
    made = Measured(tmp_path / "data")
    yield made
    made.bench.close()


def texts(rng: random.Random) -> Callable[[int], str]:
    return lambda number: rng.randbytes(20).hex()


SHAPES: dict[str, Callable[[random.Random], Callable[[int], str]]] = {
    "random": texts,
    "alike": lambda rng: lambda number: f"customer {number % 50}",
    "long": lambda rng: lambda number: "x" * 300 + str(number),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_size_matches_a_snapshot(measured: Measured, shape: str) -> None:
    """The estimate stays accurate while a table grows ninefold, whatever its contents."""
    rng = random.Random(shape)
    text = SHAPES[shape](rng)
    measured.apply(columns(PLAIN))
    for turn in range(9):
        rows = [{"text": text(turn * STEP + n), "number": rng.randrange(1 << 30)} for n in range(STEP)]
        measured.apply(append(rows))
        if turn in (0, 3, 8):
            assert measured.error() < 0.2


def test_rows_that_change(measured: Measured) -> None:
    """Wider rows and deletions change the size; a small change is not reported."""
    rng = random.Random(1)
    measured.apply(columns())
    measured.apply(upsert([{"id": n, "name": rng.randbytes(3).hex(), "amount": None} for n in range(STEP)]))
    assert measured.error() < 0.2
    small, reports = measured.bench.group.size, measured.reports
    measured.apply(upsert([{"id": n, "name": "n", "amount": None} for n in range(STEP // 50)]))
    assert (measured.bench.group.size, measured.reports) == (small, reports)
    measured.apply(upsert([{"id": n, "name": rng.randbytes(30).hex(), "amount": None} for n in range(STEP)]))
    assert measured.error() < 0.2
    measured.apply(delete(range(STEP * 9 // 10)))
    assert measured.error() < 0.25


def test_kept_changes_count(measured: Measured) -> None:
    """Kept changes count: they are copied too, and may be larger than the rows."""
    rng = random.Random(2)
    measured.apply(columns(changes=True))
    for _ in range(5):
        measured.apply(upsert([{"id": n, "name": rng.randbytes(9).hex(), "amount": None} for n in range(STEP // 4)]))
    assert measured.error() < 0.2


def test_partitions_of_a_table_share_samples(measured: Measured, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a restart only one partition of a table is sampled, and the others use its width."""
    bench, rng = measured.bench, random.Random(3)
    rows = [{"id": n, "name": rng.randbytes(9).hex(), "amount": None} for n in range(STEP // 10)]
    for group in range(GROUP, GROUP + 20):
        bench.open(group)
        bench.apply(columns(), upsert(rows), group=group)
        bench.fold(group)
    sampled: list[str] = []
    sample = SizeEstimator._sample

    def counted(estimator: SizeEstimator, cursor: Cursor, table: str, rows: int) -> float:
        sampled.append(table)
        return sample(estimator, cursor, table, rows)

    monkeypatch.setattr(SizeEstimator, "_sample", counted)
    for group in range(GROUP, GROUP + 20):
        assert measured.estimator.measure(bench.engine.groups[group])
    assert len(sampled) == 1
    assert len({bench.engine.groups[group].size for group in range(GROUP, GROUP + 20)}) == 1
    assert measured.error() < 0.2


def test_no_sample_on_a_full_disk(measured: Measured) -> None:
    """On a full disk no sample is written; the size is known once there is room again."""
    estimator = SizeEstimator(measured.bench.engine.database, full=lambda: "no room")
    measured.bench.apply(columns(KEYED), upsert([{"id": 1, "name": "a", "amount": None}]))
    measured.bench.fold()
    assert not estimator.measure(measured.bench.group)
    assert measured.bench.group.size is None
    assert measured.estimator.measure(measured.bench.group)
    assert measured.bench.group.size
