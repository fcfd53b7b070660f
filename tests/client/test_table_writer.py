"""`PartitionQueue`: writes that arrive while another is being sent share a call."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pyarrow as pa
import pytest

from evenkeel.client.retries import Retrier, RetryingCall
from evenkeel.client.route_cache import RouteCache
from evenkeel.client.store_connections import Connections
from evenkeel.client.table_writer import Op, PartitionQueue
from evenkeel.errors import RowsError, UnavailableError


class FakeStore:
    """A store that blocks until `first` is set, and rejects the row 13 if `refused` is set."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[int]]] = []
        self.first = threading.Event()
        self.refused: Exception | None = None

    def __call__(self, op: Op, batches: list[pa.RecordBatch], call: RetryingCall) -> int:
        assert self.first.wait(30)
        ids = [number for batch in batches for number in batch.column("id").to_pylist()]
        self.calls.append((op, ids))
        if self.refused is not None and 13 in ids:
            raise self.refused
        return len(self.calls)


@pytest.fixture
def store() -> FakeStore:
    return FakeStore()


@pytest.fixture
def queue(store: FakeStore) -> Iterator[PartitionQueue]:
    with ThreadPoolExecutor(4) as pool:
        yield PartitionQueue(store, pool)
        store.first.set()


def write(queue: PartitionQueue, op: Op, batches: list[pa.RecordBatch], *, seconds: float = 30.0) -> Future[int]:
    connections = Connections()
    return queue.add(op, batches, Retrier(RouteCache([], connections), connections, deadline=seconds).begin())


def row(*numbers: int) -> list[pa.RecordBatch]:
    return [pa.record_batch({"id": list(numbers)})]


def test_small_writes_share_a_call(queue: PartitionQueue, store: FakeStore) -> None:
    """Small writes share calls in order; a delete between upserts stays between them."""
    jobs = [write(queue, "upsert", row(0))]
    jobs += [write(queue, "upsert", row(number)) for number in (1, 2, 3)]
    jobs += [write(queue, "delete", row(2)), write(queue, "delete", row(1)), write(queue, "upsert", row(4))]
    store.first.set()
    indexes = [job.result(30) for job in jobs]
    assert [call for call in store.calls if call != ("upsert", [0])] in (
        [("upsert", [1, 2, 3]), ("delete", [2, 1]), ("upsert", [4])],
        [("upsert", [0, 1, 2, 3]), ("delete", [2, 1]), ("upsert", [4])],
    )
    assert indexes == sorted(indexes)


def test_a_rejected_write_does_not_fail_others(queue: PartitionQueue, store: FakeStore) -> None:
    """After a shared call is rejected, each write is sent alone, and only the invalid one fails."""
    store.refused = RowsError("no")
    jobs = [write(queue, "upsert", row(number)) for number in (0, 12, 13, 14)]
    store.first.set()
    assert [type(job.exception(30)) for job in jobs] == [type(None), type(None), RowsError, type(None)]


def test_a_retryable_error_fails_all_writes(queue: PartitionQueue, store: FakeStore) -> None:
    """After the deadline no write is sent again, because it may have been written."""
    store.refused = UnavailableError("late")
    jobs = [write(queue, "upsert", row(number)) for number in (0, 12, 13, 14)]
    store.first.set()
    assert {type(job.exception(30)) for job in jobs[1:]} == {UnavailableError}
    assert len(store.calls) <= 2


def test_appends_do_not_share_a_call(queue: PartitionQueue, store: FakeStore) -> None:
    """A row without a key must not be written again together with another caller's."""
    jobs = [write(queue, "append", row(number)) for number in range(4)]
    store.first.set()
    assert [job.result(30) for job in jobs] == [1, 2, 3, 4]


def test_other_schemas_do_not_share_a_call(queue: PartitionQueue, store: FakeStore) -> None:
    """A batch from before a column was added is sent alone."""
    jobs = [write(queue, "upsert", row(0)), write(queue, "upsert", [pa.record_batch({"id": [1], "x": [2]})])]
    store.first.set()
    assert [job.result(30) for job in jobs] == [1, 2]


def test_any_error_reaches_the_caller(queue: PartitionQueue, store: FakeStore) -> None:
    """An unexpected error reaches the caller, and the next write works."""
    store.refused = ZeroDivisionError("oops")
    failed = write(queue, "upsert", row(13))
    store.first.set()
    assert isinstance(failed.exception(30), ZeroDivisionError)
    assert write(queue, "upsert", row(1)).result(30) == 2


def test_a_cancelled_write_is_not_sent(queue: PartitionQueue, store: FakeStore) -> None:
    """A write that is cancelled in the queue is not sent; the others are."""
    first = write(queue, "upsert", row(0))
    late, kept = write(queue, "upsert", row(1), seconds=1), write(queue, "upsert", row(2), seconds=60)
    assert late.cancel()
    store.first.set()
    assert [first.result(30), kept.result(30)] == [1, 2]
    assert [ids for _, ids in store.calls] == [[0], [2]]
