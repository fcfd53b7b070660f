"""Reads rows ahead of a slow consumer.

A store ends a scan whose rows are not read, and the operators after a scan in Spark may be slow. So a thread reads rows
as fast as they arrive, and buffers them: first in memory, then in a file.
"""

from __future__ import annotations

import os
import queue
import tempfile
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, Final, NamedTuple

import pyarrow as pa

__all__ = ["prefetch"]

_MEMORY_BYTES: Final = 64 << 20


class _Spilled(NamedTuple):
    """The position of a batch in the file."""

    start: int
    size: int


class _Ended(NamedTuple):
    """The end of the batches."""

    error: BaseException | None


def prefetch(
    batches: Iterable[pa.RecordBatch], *, stop: Callable[[], None], memory_bytes: int = _MEMORY_BYTES
) -> Generator[pa.RecordBatch]:
    """Yield the batches, which a thread reads; an error is raised after the batches before it.

    `stop` must end a read that is in progress; it is called when the consumer ends.
    """
    with tempfile.TemporaryFile(dir=_directory()) as file:
        buffer = _Buffer(batches, file.fileno(), memory_bytes=memory_bytes)
        thread = threading.Thread(target=buffer.fill, name="prefetch", daemon=True)
        thread.start()
        try:
            yield from buffer.drain()
        finally:
            stop()
            thread.join()


def _directory() -> str | None:
    """Return Spark's directory for temporary files; None for the default of the system."""
    return os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[0] or None


class _Buffer:
    """The batches between the thread that reads and the consumer."""

    def __init__(self, batches: Iterable[pa.RecordBatch], file: int, *, memory_bytes: int) -> None:
        self._batches = batches
        self._file = file
        self._end = 0
        self._free_bytes = memory_bytes
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def drain(self) -> Iterator[pa.RecordBatch]:
        """Yield the batches in order."""
        while True:
            match self._queue.get():
                case _Ended(error):
                    if error is not None:
                        raise error
                    return
                case _Spilled(start, size):
                    yield self._load(start, size)
                case batch:
                    with self._lock:
                        self._free_bytes += batch.nbytes
                    yield batch

    def fill(self) -> None:
        """Read all batches."""
        error: BaseException | None = None
        try:
            for batch in self._batches:
                self._queue.put(self._keep(batch))
        except BaseException as failure:
            error = failure
        self._queue.put(_Ended(error))

    def _keep(self, batch: pa.RecordBatch) -> pa.RecordBatch | _Spilled:
        with self._lock:
            if self._free_bytes >= batch.nbytes:
                self._free_bytes -= batch.nbytes
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
