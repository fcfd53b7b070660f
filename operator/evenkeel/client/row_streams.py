"""Rows of one partition as they come, for readers who do not want all of them in memory.

A stream has no deadline as a whole: how long it takes is up to its reader. What is limited is how long a store may say
nothing while somebody waits for it.
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

__all__ = ["PATIENCE", "RowStream"]

PATIENCE: Final = 120.0
"""A condition that few rows fulfil keeps a store busy for a while before the first of them comes."""


class RowStream:
    """Batches of rows, all as of one moment; a context manager that hangs up."""

    def __init__(self, reader: flight.FlightStreamReader, *, patience: float = PATIENCE) -> None:
        self._reader = reader
        self._patience = patience
        self.schema: pa.Schema = reader.schema
        self.index = 0
        """Of the log: the rows are as of it."""
        # A store begins with a batch without rows, so what is wrong with a request shows here.
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
        """Hang up, also in the middle."""
        self._reader.cancel()

    def _read(self) -> pa.RecordBatch | None:
        silent = threading.Event()

        def give_up() -> None:
            silent.set()
            self._reader.cancel()

        timer = threading.Timer(self._patience, give_up)
        timer.daemon = True
        timer.start()
        try:
            chunk = self._reader.read_chunk()
        except StopIteration:
            return None
        except (pa.ArrowException, OSError) as error:
            if silent.is_set():
                raise UnavailableError(f"the store said nothing for {self._patience:g} s: read anew") from None
            raise store_error(error) from None
        finally:
            timer.cancel()
        if chunk.app_metadata is not None:
            self.index = decode(ReadStamp, chunk.app_metadata.to_pybytes()).index
        return chunk.data
