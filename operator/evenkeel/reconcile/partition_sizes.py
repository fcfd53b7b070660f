"""The sizes of partitions, from the stores' reports.

Replicas of a partition hold the same rows, but one that is being copied is incomplete. So the size of a partition is
the largest that a store reports. Sizes are kept by slices of partitions, like the reports, so that a report costs no
more than the partitions it names.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import chain

from evenkeel.protocol.keys import LOAD_SLICE

__all__ = ["Sizes", "total_size"]

_Slice = tuple[str, int]
"""A table, and the number of its slice."""


class Sizes:
    """The sizes of the partitions of all tables."""

    def __init__(self) -> None:
        self._reported: dict[_Slice, dict[str, Mapping[int, int]]] = {}
        """By slice and report key, the reported sizes by partition."""
        self._largest: dict[str, dict[int, dict[int, int]]] = {}
        """By table and slice, the largest reported sizes by partition."""
        self._slices: dict[str, tuple[_Slice, ...]] = {}
        """By report key, the slices that it names."""

    def apply(self, key: str, tables: Mapping[str, Iterable[tuple[int, int]]]) -> None:
        """Replace a report's partitions and bytes, by table; empty if the report was removed."""
        slices: dict[_Slice, dict[int, int]] = {}
        for table, pairs in tables.items():
            for partition, size in pairs:
                slices.setdefault((table, partition // LOAD_SLICE), {})[partition] = size
        before = self._slices.pop(key, ())
        if slices:
            self._slices[key] = tuple(slices)
        for at in {*before, *slices}:
            self._replace(at, key, slices.get(at))

    def _replace(self, at: _Slice, key: str, sizes: Mapping[int, int] | None) -> None:
        reported = self._reported.setdefault(at, {})
        reported.pop(key, None)
        if sizes:
            reported[key] = sizes
        table, number = at
        if reported:
            self._largest.setdefault(table, {})[number] = _largest(reported.values())
            return
        del self._reported[at]
        of_table = self._largest[table]
        of_table.pop(number, None)
        if not of_table:
            del self._largest[table]

    def of(self, table: str) -> dict[int, int]:
        """Return the size of one replica of each partition, as far as a store reports it."""
        slices = self._largest.get(table, {})
        return dict(chain.from_iterable(slices[number].items() for number in sorted(slices)))


def total_size(sizes: Mapping[int, int], partitions: Collection[int]) -> int | None:
    """Return the total size of partitions; None unless the size of each is known."""
    known = [sizes[partition] for partition in partitions if partition in sizes]
    return sum(known) if known and len(known) == len(partitions) else None


def _largest(reports: Iterable[Mapping[int, int]]) -> dict[int, int]:
    found: dict[int, int] = {}
    for report in reports:
        for partition, size in report.items():
            if size >= found.get(partition, 0):
                found[partition] = size
    return found
