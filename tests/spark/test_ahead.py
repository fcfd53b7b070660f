"""Reading ahead of a slow consumer."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest

from evenkeel.errors import UnavailableError
from evenkeel_spark.ahead import read_ahead


def batch(number: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": [number] * 100, "text": ["x" * number] * 100})


@pytest.mark.parametrize("in_memory", [0, 5000, 1 << 30])
def test_everything_is_read_though_nobody_takes_it(in_memory: int) -> None:
    """The source is exhausted before the second batch is asked for; what did not fit lay in a file meanwhile."""
    exhausted = threading.Event()

    def source() -> Iterator[pa.RecordBatch]:
        yield from map(batch, range(20))
        exhausted.set()

    reading = read_ahead(source(), stop=lambda: None, in_memory=in_memory)
    first = next(reading)
    assert exhausted.wait(30)
    assert [first, *reading] == [batch(number) for number in range(20)]


def test_error_comes_where_it_came() -> None:
    """What was read before it is not lost."""

    def source() -> Iterator[pa.RecordBatch]:
        yield batch(1)
        raise UnavailableError("gone")

    reading = read_ahead(source(), stop=lambda: None)
    assert next(reading) == batch(1)
    with pytest.raises(UnavailableError, match="gone"):
        next(reading)


def test_reader_that_leaves_early_stops_the_source() -> None:
    """Nobody waits for batches that nobody wants."""
    stopped = threading.Event()

    def source() -> Iterator[pa.RecordBatch]:
        yield batch(1)
        stopped.wait()

    reading = read_ahead(source(), stop=stopped.set)
    assert next(reading) == batch(1)
    reading.close()
    assert stopped.is_set()
