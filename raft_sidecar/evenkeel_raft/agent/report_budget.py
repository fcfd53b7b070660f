"""Selects the keys of a store's report to write now: those that changed enough, within a byte budget.

    header   `load/<s>`: totals, snapshot transfers, problems, damage
    slices   `load/<s>/<table>/<slice>`: the sizes of the store's replicas

A token bucket limits what a store writes. All stores share one rate, so that reports cost etcd the same for ten stores
as for a thousand. A small store never empties its bucket and reports every few seconds; a large one writes the keys
that have waited longest. Changes of snapshot transfers, problems and damage are urgent: they may overdraw the bucket
and are written at once.

In the older format the header contains the sizes too, and one header of a large store costs many minutes of its
budget. Only changes of sizes wait for the budget; urgent changes are written at once, as in the release that knows no
other format. A store starts the newer format with a full bucket, because debt from the older format would delay its
first reports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from evenkeel.metastore.metastore_api import Delete, Put
from evenkeel.protocol.records import GroupLoad, LoadSlice, StoreLoad, encode

__all__ = ["BURST_SECONDS", "LEAST_RATE", "BudgetedReport", "Sizes", "cost", "rough"]

BURST_SECONDS: Final = 100.0
"""The bucket holds the budget of so many seconds: enough for most stores to report everything at their start."""
LEAST_RATE: Final = 200.0
"""Bytes per second that a store may write regardless of the number of stores."""
_ENTRY_OVERHEAD: Final = 64
"""Approximate bytes that etcd stores in addition to key and value."""
_SIGNIFICANT: Final = 10
"""A size is written only if it differs from the written one by more than a tenth."""
_BATCH_KEYS: Final = 16

Sizes = Mapping[int, int]
"""Bytes of data by partition."""


def rough(number: float) -> int:
    """Round to two significant digits."""
    whole = round(number)
    return round(whole, min(0, 2 - len(str(abs(whole)))))


class _Written(NamedTuple):
    content: StoreLoad | Sizes
    at: float


class _Due(NamedTuple):
    key: str
    content: StoreLoad | Sizes | None
    """None: delete the key."""


class BudgetedReport:
    """Tracks which keys of a report the metastore has, and selects those to write next."""

    def __init__(self, header: str, *, rate: float, now: float) -> None:
        """`header` is the key of the header, `rate` the initial budget in bytes per second."""
        self._header = header
        self._written: dict[str, _Written] = {}
        self._lease = 0
        self._level = rate * BURST_SECONDS
        self._filled_at = now

    def batches(
        self, header: StoreLoad, slices: Mapping[str, Sizes], *, lease: int, rate: float, now: float
    ) -> Iterator[tuple[tuple[Put | Delete, ...], Callable[[], None]]]:
        """Yield the operations of one transaction at a time, with a callback for its success."""
        if lease != self._lease:
            self._lease, self._written = lease, {}
        self._level = min(rate * BURST_SECONDS, self._level + rate * (now - self._filled_at))
        self._filled_at = now
        if self._older and not header.tables:
            self._level = rate * BURST_SECONDS
        if self._urgent(header) and (header.tables or self._level > -rate * BURST_SECONDS):
            yield self._batch([_Due(self._header, header)], lease=lease, now=now)
        waiting = sorted(self._due(header, slices), key=lambda due: self._age(due.key))
        while waiting and self._level > 0:
            some, waiting = waiting[:_BATCH_KEYS], waiting[_BATCH_KEYS:]
            yield self._batch(some, lease=lease, now=now)

    def _batch(
        self, some: Iterable[_Due], *, lease: int, now: float
    ) -> tuple[tuple[Put | Delete, ...], Callable[[], None]]:
        """Charge the budget for as many keys as it allows; failed writes are charged too."""
        taken: list[_Due] = []
        operations: list[Put | Delete] = []
        for due in some:
            if taken and self._level <= 0:
                break
            rounded = _rounded(due)
            operation = _operation(rounded, lease)
            self._level -= cost(operation)
            taken.append(rounded)
            operations.append(operation)
        return tuple(operations), lambda: self._note(taken, now)

    def _note(self, taken: Iterable[_Due], now: float) -> None:
        for due in taken:
            if due.content is None:
                self._written.pop(due.key, None)
            else:
                self._written[due.key] = _Written(due.content, now)

    @property
    def _before(self) -> StoreLoad | None:
        """The header as last written."""
        written = self._written.get(self._header)
        return written.content if written is not None and isinstance(written.content, StoreLoad) else None

    @property
    def _older(self) -> bool:
        """Whether the header was last written in the older format."""
        return self._before is not None and bool(self._before.tables)

    def _urgent(self, header: StoreLoad) -> bool:
        """Whether the header has urgent changes."""
        return self._before is None or _news(header) != _news(self._before)

    def _due(self, header: StoreLoad, slices: Mapping[str, Sizes]) -> Iterator[_Due]:
        if self._before != header and not self._urgent(header):
            yield _Due(self._header, header)
        for key, sizes in slices.items():
            known = self._written.get(key)
            if known is None or _differs(sizes, known.content):
                yield _Due(key, sizes)
        for key in self._written.keys() - slices.keys() - {self._header}:
            yield _Due(key, None)

    def _age(self, key: str) -> float:
        written = self._written.get(key)
        return -1.0 if written is None else written.at


def cost(operation: Put | Delete) -> int:
    """Return the approximate cost of an operation for the metastore, in bytes."""
    value = len(operation.value) if isinstance(operation, Put) else 0
    return len(operation.key) + value + _ENTRY_OVERHEAD


def _rounded(due: _Due) -> _Due:
    if due.content is None or isinstance(due.content, StoreLoad):
        return due
    return _Due(due.key, {partition: rough(size) for partition, size in due.content.items()})


def _operation(due: _Due, lease: int) -> Put | Delete:
    if due.content is None:
        return Delete(due.key)
    if isinstance(due.content, StoreLoad):
        return Put(due.key, encode(due.content), lease)
    return Put(due.key, encode(LoadSlice(tuple(sorted(due.content.items())))), lease)


def _news(header: StoreLoad) -> StoreLoad:
    """Return the part of a header whose changes are urgent."""
    tables: dict[str, tuple[GroupLoad, ...]] = dict.fromkeys(header.tables, ())
    return msgspec.structs.replace(header, log_bytes=0, bytes_per_second=0, copied_per_second=None, tables=tables)


def _differs(sizes: Sizes, written: StoreLoad | Sizes) -> bool:
    if isinstance(written, StoreLoad) or sizes.keys() != written.keys():
        return True
    return any(abs(size - written[partition]) * _SIGNIFICANT > written[partition] for partition, size in sizes.items())
