"""One moment for all tasks of a query: pins that tasks make for each other.

The driver plans a DataFrame once and may run it many times, and tells nobody when it does. So it is tasks that pin: the
first one that finds no pin of its query pins all partitions, the others read what it pinned. A pin's name is the
query's id, hence

    all tasks of a query, and all its reads of a table, see the same rows; retries and speculative copies too;
    a DataFrame that is used again shows the rows of the query that uses it;
    a pin that has expired ends the query with an error: its name is not given again, so nobody reads past it.

Which task is the first, the log of partition 0 decides. If it dies before all partitions are pinned, another finishes
what it began.
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

__all__ = ["Moment", "open_at"]

_OTHERS_PATIENCE: Final = 5.0
"""How long another task may take to pin all partitions."""
_PAUSE: Final = 0.01


class Moment(Struct, frozen=True):
    """What a query's tasks agree on."""

    name: str
    seconds: float


def open_at(table: TableClient, partition: int, moment: Moment, read: Callable[..., RowStream]) -> RowStream:
    """Begin to read a partition as it was at a moment; `read` takes `pin` and `at_least`."""
    try:
        return read(pin=moment.name)
    except UnknownPinError:
        pass
    try:
        return _pin_and_read(table, partition, moment, partial(read, pin=moment.name))
    except UnknownPinError:
        raise UnavailableError(
            f"table {table.name}: the rows that this query began to read were kept for {moment.seconds:g} s, and that "
            "is over: run it again, with a higher option pinSeconds if it takes that long"
        ) from None


def _pin_and_read(table: TableClient, partition: int, moment: Moment, read: Callable[..., RowStream]) -> RowStream:
    first = table.pin(moment.name, seconds=moment.seconds, partitions=[0])[0]
    if not first.created and (stream := _wait_for_others(read)) is not None:
        return stream
    pins = table.pin(moment.name, seconds=moment.seconds)
    return read(at_least=pins[partition].index)


def _wait_for_others(read: Callable[..., RowStream]) -> RowStream | None:
    until = time.monotonic() + _OTHERS_PATIENCE
    while time.monotonic() < until:
        try:
            return read()
        except UnknownPinError:
            time.sleep(_PAUSE)
    return None
