"""Which keys of a store's report to write now: those that changed enough, as far as the byte budget allows.

    header   `load/<s>`: totals, replicas being filled, problems, damage
    slices   `load/<s>/<table>/<slice>`: the sizes of the store's replicas

A token bucket limits what a store writes. All stores share one rate, so that a cluster costs etcd the same whether it
has ten stores or a thousand. A small store never empties its bucket and reports every few seconds; a large one writes
the keys that have waited longest. News of fills, problems and damage may overdraw the bucket, and so go out at once.

In the older form the header has the sizes too, and one header of a large store costs many minutes of its budget. Only
changes of sizes wait for that: news go out at once, as in the release that knows no other form. The newer form begins
with a full bucket, or what a store owes for the older form would delay its first reports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from evenkeel.metastore.metastore_api import Delete, Put
from evenkeel.protocol.records import GroupLoad, LoadSlice, StoreLoad, encode

__all__ = ["BURST_SECONDS", "LEAST_RATE", "PacedReport", "Sizes", "cost", "rough"]

BURST_SECONDS: Final = 100.0
"""How much unused budget is kept: a store that just started reports everything at once where this suffices."""
LEAST_RATE: Final = 200.0
"""Bytes per second that a store may write however many stores there are."""
_ENTRY_OVERHEAD: Final = 64
"""What etcd stores beside key and value, roughly."""
_SIGNIFICANT: Final = 10
"""A size that differs by less than a tenth of what was written is no reason to write."""
_BATCH_KEYS: Final = 16

Sizes = Mapping[int, int]
"""By partition, bytes of its data."""


def rough(number: float) -> int:
    """Round to two digits that count."""
    whole = round(number)
    return round(whole, min(0, 2 - len(str(abs(whole)))))


class _Written(NamedTuple):
    content: StoreLoad | Sizes
    at: float


class _Due(NamedTuple):
    key: str
    content: StoreLoad | Sizes | None
    """None: the key goes."""


class PacedReport:
    """What of a report is in the metastore, and what comes next."""

    def __init__(self, header: str, *, rate: float, now: float) -> None:
        """`header` is the key of the header, `rate` bytes per second at first."""
        self._header = header
        self._written: dict[str, _Written] = {}
        self._lease = 0
        self._level = rate * BURST_SECONDS
        self._filled_at = now

    def batches(
        self, header: StoreLoad, slices: Mapping[str, Sizes], *, lease: int, rate: float, now: float
    ) -> Iterator[tuple[tuple[Put | Delete, ...], Callable[[], None]]]:
        """Yield operations of one transaction each, and what to call when it is done."""
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
        """Spend the budget on as many as it lasts for; what fails to be written is spent as well."""
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
        """The header as it was last written."""
        written = self._written.get(self._header)
        return written.content if written is not None and isinstance(written.content, StoreLoad) else None

    @property
    def _older(self) -> bool:
        """Whether the header was last written in the older form."""
        return self._before is not None and bool(self._before.tables)

    def _urgent(self, header: StoreLoad) -> bool:
        """Whether the header has news that somebody waits for."""
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
    """What an operation costs the metastore, in bytes."""
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
    """The part of a header that does not wait."""
    tables: dict[str, tuple[GroupLoad, ...]] = dict.fromkeys(header.tables, ())
    return msgspec.structs.replace(header, log_bytes=0, bytes_per_second=0, copied_per_second=None, tables=tables)


def _differs(sizes: Sizes, written: StoreLoad | Sizes) -> bool:
    if isinstance(written, StoreLoad) or sizes.keys() != written.keys():
        return True
    return any(abs(size - written[partition]) * _SIGNIFICANT > written[partition] for partition, size in sizes.items())
