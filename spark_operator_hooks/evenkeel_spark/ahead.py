"""Rows read ahead of whoever uses them.

A store ends a scan that nobody takes rows from, and what comes behind a scan in Spark may well be slow. So a thread
takes rows as fast as they come, and keeps what is not wanted yet: some of it in memory, the rest in a file.
"""

from __future__ import annotations

import os
import queue
import tempfile
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, Final, NamedTuple

import pyarrow as pa

__all__ = ["read_ahead"]

_IN_MEMORY: Final = 64 << 20


class _Spilled(NamedTuple):
    """Where a batch is in the file."""

    start: int
    size: int


class _Ended(NamedTuple):
    """The last thing that comes."""

    error: BaseException | None


def read_ahead(
    batches: Iterable[pa.RecordBatch], *, stop: Callable[[], None], in_memory: int = _IN_MEMORY
) -> Generator[pa.RecordBatch]:
    """Yield the batches, read on a thread of their own; an error comes where it came.

    `stop` ends the wait for the next one, where nobody wants it any more.
    """
    with tempfile.TemporaryFile(dir=_directory()) as file:
        ahead = _Ahead(batches, file.fileno(), in_memory=in_memory)
        thread = threading.Thread(target=ahead.run, name="read ahead", daemon=True)
        thread.start()
        try:
            yield from ahead.taken()
        finally:
            stop()
            thread.join()


def _directory() -> str | None:
    """Where Spark wants temporary files; None for the system's own place."""
    return os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[0] or None


class _Ahead:
    """What lies between the thread that reads and the one that uses."""

    def __init__(self, batches: Iterable[pa.RecordBatch], file: int, *, in_memory: int) -> None:
        self._batches = batches
        self._file = file
        self._end = 0
        self._room = in_memory
        self._lock = threading.Lock()
        self._coming: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def taken(self) -> Iterator[pa.RecordBatch]:
        """Yield what was read, in order."""
        while True:
            match self._coming.get():
                case _Ended(error):
                    if error is not None:
                        raise error
                    return
                case _Spilled(start, size):
                    yield self._load(start, size)
                case batch:
                    with self._lock:
                        self._room += batch.nbytes
                    yield batch

    def run(self) -> None:
        """Read everything."""
        error: BaseException | None = None
        try:
            for batch in self._batches:
                self._coming.put(self._keep(batch))
        except BaseException as failure:
            error = failure
        self._coming.put(_Ended(error))

    def _keep(self, batch: pa.RecordBatch) -> pa.RecordBatch | _Spilled:
        with self._lock:
            if self._room >= batch.nbytes:
                self._room -= batch.nbytes
                return batch
        return self._spill(batch)

    def _spill(self, batch: pa.RecordBatch) -> _Spilled:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        data = memoryview(sink.getvalue())
        start, self._end = self._end, self._end + len(data)
        written = 0
        while written < len(data):
            written += os.pwrite(self._file, data[written:], start + written)
        return _Spilled(start, len(data))

    def _load(self, start: int, size: int) -> pa.RecordBatch:
        return pa.ipc.open_stream(os.pread(self._file, size, start)).read_next_batch()
