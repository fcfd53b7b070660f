"""Pins that make all tasks of a query read the same rows.

The driver plans a DataFrame once and may run it many times, without notifying the data source. So the tasks set the
pins: the first task that finds no pin of its query pins all partitions, and the others read at its pins. The name of a
pin is the id of the query. As a result:

    All tasks of a query, and all its reads of a table, see the same rows, including retries and speculative copies.
    A DataFrame that is used again shows the rows of the query that uses it.
    An expired pin fails its query: stores do not accept its name again, so no task reads other rows.

The log of partition 0 decides which task is the first. If it dies before all partitions are pinned, another task pins
the rest.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Final

from msgspec import Struct

from evenkeel.client import TableClient
from evenkeel.client.row_streams import RowStream
from evenkeel.errors import UnavailableError, UnknownPinError

__all__ = ["QueryPin", "open_at_pin"]

_PIN_TIMEOUT: Final = 5.0
"""How long to wait until another task has pinned all partitions, in seconds."""
_PAUSE: Final = 0.01


class QueryPin(Struct, frozen=True):
    """The pin that all tasks of a query share."""

    name: str
    seconds: float


def open_at_pin(table: TableClient, partition: int, query_pin: QueryPin, read: Callable[..., RowStream]) -> RowStream:
    """Open a stream of a partition at the pin of a query; `read` takes `pin` and `at_least`."""
    try:
        return read(pin=query_pin.name)
    except UnknownPinError:
        pass
    try:
        return _pin_and_read(table, partition, query_pin, partial(read, pin=query_pin.name))
    except UnknownPinError:
        raise UnavailableError(
            f"table {table.name}: the pin of this query expired after {query_pin.seconds:g} s; run the query again, "
            "with a higher option pinSeconds if it takes that long"
        ) from None


def _pin_and_read(table: TableClient, partition: int, query_pin: QueryPin, read: Callable[..., RowStream]) -> RowStream:
    first = table.pin(query_pin.name, seconds=query_pin.seconds, partitions=[0])[0]
    if not first.created and (stream := _wait_for_pins(read)) is not None:
        return stream
    pins = table.pin(query_pin.name, seconds=query_pin.seconds)
    return read(at_least=pins[partition].index)


def _wait_for_pins(read: Callable[..., RowStream]) -> RowStream | None:
    until = time.monotonic() + _PIN_TIMEOUT
    while time.monotonic() < until:
        try:
            return read()
        except UnknownPinError:
            time.sleep(_PAUSE)
    return None
