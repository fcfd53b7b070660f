"""`prefetch` reads ahead of a slow consumer."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest

from evenkeel.errors import UnavailableError
from evenkeel_spark.prefetch import prefetch


def batch(number: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": [number] * 100, "text": ["x" * number] * 100})


@pytest.mark.parametrize("memory_bytes", [0, 5000, 1 << 30])
def test_all_batches_are_prefetched(memory_bytes: int) -> None:
    """The source is exhausted before the second batch is consumed; batches that do not fit in memory are in a file."""
    exhausted = threading.Event()

    def source() -> Iterator[pa.RecordBatch]:
        yield from map(batch, range(20))
        exhausted.set()

    reading = prefetch(source(), stop=lambda: None, memory_bytes=memory_bytes)
    first = next(reading)
    assert exhausted.wait(30)
    assert [first, *reading] == [batch(number) for number in range(20)]


def test_error_follows_the_batches_before_it() -> None:
    """Batches that were read before an error are not lost."""

    def source() -> Iterator[pa.RecordBatch]:
        yield batch(1)
        raise UnavailableError("gone")

    reading = prefetch(source(), stop=lambda: None)
    assert next(reading) == batch(1)
    with pytest.raises(UnavailableError, match="gone"):
        next(reading)


def test_closing_early_stops_the_source() -> None:
    """Closing the generator calls `stop`."""
    stopped = threading.Event()

    def source() -> Iterator[pa.RecordBatch]:
        yield batch(1)
        stopped.wait()

    reading = prefetch(source(), stop=stopped.set)
    assert next(reading) == batch(1)
    reading.close()
    assert stopped.is_set()
