"""Streams of the rows of one partition, for readers that do not keep all rows in memory.

A stream has no deadline, because its duration depends on the reader. It has a progress timeout instead: how long a read
may wait for the store.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
from pyarrow import flight

from evenkeel.client.store_connections import store_error
from evenkeel.errors import UnavailableError
from evenkeel.wire.flight import ReadStamp, decode

__all__ = ["PROGRESS_TIMEOUT", "RowStream"]

PROGRESS_TIMEOUT: Final = 120.0
"""Long, because a store may scan many rows before it finds the first that matches a condition."""


class RowStream:
    """Batches of rows, read at one log index; a context manager that closes the stream."""

    def __init__(self, reader: flight.FlightStreamReader, *, timeout: float = PROGRESS_TIMEOUT) -> None:
        self._reader = reader
        self._timeout = timeout
        self.schema: pa.Schema = reader.schema
        self.index = 0
        """The log index at which the rows were read."""
        # A store sends an empty batch first, so an invalid request fails here.
        self._first: Any = self._read()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        while (batch := self._first or self._read()) is not None:
            self._first = None
            if batch.num_rows:
                yield batch

    def __enter__(self) -> RowStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the stream, whether or not all rows were read."""
        self._reader.cancel()

    def _read(self) -> pa.RecordBatch | None:
        timed_out = threading.Event()

        def cancel() -> None:
            timed_out.set()
            self._reader.cancel()

        timer = threading.Timer(self._timeout, cancel)
        timer.daemon = True
        timer.start()
        try:
            chunk = self._reader.read_chunk()
        except StopIteration:
            return None
        except (pa.ArrowException, OSError) as error:
            if timed_out.is_set():
                raise UnavailableError(
                    f"the store sent nothing for {self._timeout:g} s; read the partition again"
                ) from None
            raise store_error(error) from None
        finally:
            timer.cancel()
        if chunk.app_metadata is not None:
            self.index = decode(ReadStamp, chunk.app_metadata.to_pybytes()).index
        return chunk.data
