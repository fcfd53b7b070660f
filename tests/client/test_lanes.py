"""Writes that come while another is under way go together."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pyarrow as pa
import pytest

from evenkeel.client.lanes import Lane, Op
from evenkeel.client.retries import Attempts, Trying
from evenkeel.client.route_cache import RouteCache
from evenkeel.client.store_connections import Connections
from evenkeel.errors import RowsError, UnavailableError


class Sending:
    """A store that takes the first write in when it is told to, and refuses what it is told to."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[int]]] = []
        self.first = threading.Event()
        self.refused: Exception | None = None

    def __call__(self, op: Op, batches: list[pa.RecordBatch], trying: Trying) -> int:
        assert self.first.wait(30)
        ids = [number for batch in batches for number in batch.column("id").to_pylist()]
        self.calls.append((op, ids))
        if self.refused is not None and 13 in ids:
            raise self.refused
        return len(self.calls)


@pytest.fixture
def store() -> Sending:
    return Sending()


@pytest.fixture
def lane(store: Sending) -> Iterator[Lane]:
    with ThreadPoolExecutor(4) as pool:
        yield Lane(store, pool)
        store.first.set()


def write(lane: Lane, op: Op, batches: list[pa.RecordBatch], *, seconds: float = 30.0) -> Future[int]:
    connections = Connections()
    return lane.add(op, batches, Attempts(RouteCache([], connections), connections, deadline=seconds).begin())


def row(*numbers: int) -> list[pa.RecordBatch]:
    return [pa.record_batch({"id": list(numbers)})]


def test_small_writes_go_together(lane: Lane, store: Sending) -> None:
    """In their order; a delete between upserts stays between them."""
    jobs = [write(lane, "upsert", row(0))]
    jobs += [write(lane, "upsert", row(number)) for number in (1, 2, 3)]
    jobs += [write(lane, "delete", row(2)), write(lane, "delete", row(1)), write(lane, "upsert", row(4))]
    store.first.set()
    indexes = [job.result(30) for job in jobs]
    assert [call for call in store.calls if call != ("upsert", [0])] in (
        [("upsert", [1, 2, 3]), ("delete", [2, 1]), ("upsert", [4])],
        [("upsert", [0, 1, 2, 3]), ("delete", [2, 1]), ("upsert", [4])],
    )
    assert indexes == sorted(indexes)


def test_one_that_is_refused_costs_no_other(lane: Lane, store: Sending) -> None:
    """What went together is tried again alone, and who was refused is told."""
    store.refused = RowsError("no")
    jobs = [write(lane, "upsert", row(number)) for number in (0, 12, 13, 14)]
    store.first.set()
    assert [type(job.exception(30)) for job in jobs] == [type(None), type(None), RowsError, type(None)]


def test_what_cannot_be_known_is_everybody_s(lane: Lane, store: Sending) -> None:
    """After the deadline nothing is tried again: it may have been written."""
    store.refused = UnavailableError("late")
    jobs = [write(lane, "upsert", row(number)) for number in (0, 12, 13, 14)]
    store.first.set()
    assert {type(job.exception(30)) for job in jobs[1:]} == {UnavailableError}
    assert len(store.calls) <= 2


def test_appends_keep_to_themselves(lane: Lane, store: Sending) -> None:
    """A row without a key must not be written again with somebody else's."""
    jobs = [write(lane, "append", row(number)) for number in range(4)]
    store.first.set()
    assert [job.result(30) for job in jobs] == [1, 2, 3, 4]


def test_rows_of_other_columns_wait(lane: Lane, store: Sending) -> None:
    """A batch from before a column was added goes by itself."""
    jobs = [write(lane, "upsert", row(0)), write(lane, "upsert", [pa.record_batch({"id": [1], "x": [2]})])]
    store.first.set()
    assert [job.result(30) for job in jobs] == [1, 2]


def test_any_error_reaches_who_waits(lane: Lane, store: Sending) -> None:
    """Also one that nobody thought of; the next write is taken all the same."""
    store.refused = ZeroDivisionError("oops")
    failed = write(lane, "upsert", row(13))
    store.first.set()
    assert isinstance(failed.exception(30), ZeroDivisionError)
    assert write(lane, "upsert", row(1)).result(30) == 2


def test_what_nobody_waits_for_any_more_is_not_sent(lane: Lane, store: Sending) -> None:
    """A write that is cancelled before its turn leaves no trace; the others go on, as long as the last of them may."""
    first = write(lane, "upsert", row(0))
    late, kept = write(lane, "upsert", row(1), seconds=1), write(lane, "upsert", row(2), seconds=60)
    assert late.cancel()
    store.first.set()
    assert [first.result(30), kept.result(30)] == [1, 2]
    assert [ids for _, ids in store.calls] == [[0], [2]]
