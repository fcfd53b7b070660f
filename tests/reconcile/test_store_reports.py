"""Stores' reports in both formats, and the sizes derived from them."""

from __future__ import annotations

from typing import Any

from evenkeel.metastore.metastore_api import KeyValue
from evenkeel.protocol.records import GroupLoad, LoadSlice, StoreLoad, encode
from evenkeel.reconcile.store_reports import ConcernedTables, Reports
from tests.reconcile.support import KEYS, TABLE


def older(store: str, *groups: GroupLoad) -> KeyValue:
    load = StoreLoad(replicas=1, leading=1, log_bytes=9, bytes_per_second=0, tables={TABLE: groups})
    return KeyValue(KEYS.load(store), encode(load), 1, 1, 1)


def header(store: str, **fields: Any) -> KeyValue:
    load = StoreLoad(replicas=1, leading=1, log_bytes=9, bytes_per_second=0, **fields)
    return KeyValue(KEYS.load(store), encode(load), 1, 1, 1)


def sizes(store: str, *pairs: tuple[int, int], table: str = TABLE) -> KeyValue:
    return KeyValue(KEYS.load_slice(store, table, pairs[0][0]), encode(LoadSlice(pairs)), 1, 1, 1)


def test_a_partition_is_as_large_as_its_largest_replica() -> None:
    """An incomplete replica is smaller; a removed report no longer counts."""
    reports = Reports(
        KEYS, [header("s0"), sizes("s0", (0, 10), (1, 20)), sizes("s1", (1, 5), (2, 7)), sizes("s1", (3000, 9))]
    )
    assert reports.sizes(TABLE) == {0: 10, 1: 20, 2: 7, 3000: 9}
    assert reports.apply(KEYS.load_slice("s0", TABLE, 0), None).named == {TABLE}
    assert reports.sizes(TABLE) == {1: 5, 2: 7, 3000: 9}
    reports.apply(KEYS.load_slice("s1", TABLE, 3000), None)
    reports.apply(KEYS.load_slice("s1", TABLE, 0), sizes("s1", (2, 8)))
    assert reports.sizes(TABLE) == {2: 8}
    assert (reports.sizes("other.1"), list(reports.all())) == ({}, ["s0"])


def test_the_older_form_is_read_too() -> None:
    """Sidecars of the previous release report sizes in the header."""
    reports = Reports(
        KEYS, [older("s0", GroupLoad(0, True, 1 << 28, 0)), older("s1", GroupLoad(1, True, 1 << 28, 0, 77))]
    )
    assert reports.sizes(TABLE) == {1: 77}
    assert set(reports.of(TABLE)) == {"s0", "s1"}
    reports.apply(KEYS.load("s1"), header("s1"))
    reports.apply(KEYS.load_slice("s1", TABLE, 1), sizes("s1", (1, 78)))
    assert reports.sizes(TABLE) == {1: 78}
    reports.apply(KEYS.load_slice("s1", TABLE, 1), None)
    reports.apply(KEYS.load("s1"), None)
    assert reports.sizes(TABLE) == {}
    assert set(reports.of(TABLE)) == {"s0"}


def test_an_unreadable_report_is_ignored() -> None:
    """An unreadable report is ignored."""
    reports = Reports(KEYS, [KeyValue(KEYS.load_slice("s0", TABLE, 0), b"[1]", 1, 1, 1)])
    assert reports.sizes(TABLE) == {}


def test_a_header_names_the_tables_that_it_changes() -> None:
    """A table whose partitions have different problems or damage is concerned, whether or not it moves."""
    reports, name, ours = Reports(KEYS), f"{TABLE}/4", frozenset((TABLE,))
    first = reports.apply(KEYS.load("s0"), header("s0", problems={name: "slow"}))
    assert first == ConcernedTables(ours, problems=ours)
    worse = reports.apply(KEYS.load("s0"), header("s0", problems={name: "slow"}, damaged=(name,)))
    assert worse == ConcernedTables(ours, damaged=ours)
    assert reports.apply(KEYS.load("s0"), None) == ConcernedTables(ours, problems=ours, damaged=ours)
