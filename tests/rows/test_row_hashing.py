"""Row hashes depend only on values."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from evenkeel.rows.partitioning import partitions_of
from evenkeel.rows.row_hashing import LONG_VALUE, hash_rows, sum_of_hashes
from evenkeel.rows.row_schema import ColumnDef, RowSchema

SCHEMA = pa.schema(
    {
        "b": pa.bool_(),
        "i": pa.int16(),
        "f": pa.float32(),
        "d": pa.float64(),
        "s": pa.string(),
        "y": pa.binary(),
        "day": pa.date32(),
        "at": pa.timestamp("us", "UTC"),
        "n": pa.decimal128(30, 3),
    }
)
ROW: dict[str, Any] = {
    "b": True,
    "i": -7,
    "f": 1.5,
    "d": -0.25,
    "s": "twelve bytes",
    "y": b"\x00\xff",
    "day": date(2026, 1, 31),
    "at": datetime(2026, 1, 31, 12, tzinfo=UTC),
    "n": Decimal("-12345678901234567890.125"),
}
EMPTY: dict[str, Any] = dict.fromkeys(ROW)


def hashed(*rows: dict[str, object]) -> list[int]:
    return [int(word) for word in hash_rows(pa.RecordBatch.from_pylist(list(rows), schema=SCHEMA))]


def word(x: int) -> int:
    x ^= x >> 30
    x = x * 0xBF58476D1CE4E5B9 % (1 << 64)
    x ^= x >> 27
    x = x * 0x94D049BB133111EB % (1 << 64)
    return x ^ x >> 31


def words_of(value: object) -> list[int]:
    """Return the words of a value: a second implementation of the definition in the module docstring."""
    match value:
        case bool() | int():
            return [value % (1 << 64)]
        case float():
            return list(struct.unpack("<Q", struct.pack("<d", value)))
        case datetime():
            return [round((value - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1_000_000)]
        case date():
            return [(value - date(1970, 1, 1)).days]
        case Decimal():
            return list(struct.unpack("<QQ", int(value.scaleb(3)).to_bytes(16, "little", signed=True)))
        case str():
            return words_of(value.encode())
        case bytes() if len(value) > LONG_VALUE:
            return [len(value), int.from_bytes(hashlib.blake2b(value, digest_size=8).digest(), "little")]
        case bytes():
            return [len(value), *(int.from_bytes(value[at : at + 8], "little") for at in range(0, len(value), 8))]
    raise TypeError(value)


def slow_hash(values: Iterable[object]) -> int:
    seed = 0x9E3779B97F4A7C15
    row = seed
    for value in values:
        one = seed
        for chained in [] if value is None else words_of(value):
            one = word(one ^ chained)
        row = word(row ^ (0x6A09E667F3BCC909 if value is None else one))
    return row


def test_hash_matches_its_definition() -> None:
    """Hashing value by value, as defined, gives the same hashes as hashing whole columns."""
    for row in (ROW, EMPTY, ROW | {"s": "", "y": b"x" * 1000}, ROW | {"s": "x" * 8, "y": b"x" * LONG_VALUE}):
        single = struct.unpack("<I", struct.pack("<f", row["f"]))[0] if row["f"] else None
        expected = slow_hash(single if name == "f" else row[name] for name in ROW)
        assert hashed(row) == [expected]


def test_hash_never_changes() -> None:
    """Rows keep their partition across releases, so these numbers must never change."""
    keys = pa.record_batch({"id": pa.array([0, 1, -1, 1 << 40])})
    assert hash_rows(keys).tolist() == [
        258863698125685209,
        4815193057359064352,
        1588169667328632630,
        13609080565714882282,
    ]


@pytest.mark.parametrize("column", list(ROW))
def test_every_column_counts(column: str) -> None:
    """Rows that differ in one value or null have different hashes."""
    other = {
        "b": False,
        "i": 7,
        "f": -1.5,
        "d": 0.25,
        "s": "twelve byteS",
        "y": b"\x00\xff\x00",
        "day": date(2026, 2, 1),
        "at": datetime(2026, 1, 31, 12, 0, 0, 1, tzinfo=UTC),
        "n": Decimal("12345678901234567890.125"),
    }
    assert len({*hashed(ROW, ROW | {column: other[column]}, ROW | {column: None}, EMPTY)}) == 4


def test_value_boundaries_count() -> None:
    """The same bytes in other columns, empty text and null have different hashes."""
    texts = [("ab", "c"), ("a", "bc"), ("abc", ""), ("", "abc"), ("abc", None), (None, "abc")]
    batch = pa.RecordBatch.from_pylist(
        [{"x": x, "y": y} for x, y in texts], schema=pa.schema(dict.fromkeys("xy", pa.string()))
    )
    assert len(set(hash_rows(batch).tolist())) == len(texts)


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 16, LONG_VALUE - 1, LONG_VALUE, LONG_VALUE + 1, 5000])
def test_every_byte_of_text_counts(length: int) -> None:
    """The last byte and the length are part of the hash, for any length."""
    values = [b"x" * length, b"x" * length + b"\x00", b"x" * max(0, length - 1) + b"y"]
    assert len(set(hash_rows(pa.record_batch({"v": pa.array(values)})).tolist())) == 3


def test_layout_does_not_count() -> None:
    """Slices, chunks and the bytes under a null do not change hashes."""
    rows = [ROW | {"i": number, "s": "t" * number} for number in range(10)] + [EMPTY]
    whole = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
    expected = hash_rows(whole).tolist()
    assert hash_rows(whole.slice(3, 5)).tolist() == expected[3:8]
    assert hash_rows(pa.Table.from_batches([whole.slice(0, 4), whole.slice(4)])).tolist() == expected
    dirty = pa.Array.from_buffers(pa.int64(), 1, [pa.py_buffer(b"\x00"), pa.py_buffer(b"\xaa" * 8)])
    clean = pa.array([None], pa.int64())
    assert hash_rows(pa.record_batch({"v": dirty})).tolist() == hash_rows(pa.record_batch({"v": clean})).tolist()


def test_nan_is_one_value() -> None:
    """All NaNs have the same hash; the two zeros have not."""
    nans = np.array([0x7FF8000000000000, 0xFFF8000000000001], np.uint64).view(np.float64)
    first, second = hash_rows(pa.record_batch({"v": nans}))
    assert first == second
    plus, minus = hash_rows(pa.record_batch({"v": [0.0, -0.0]}))
    assert plus != minus


def test_sum_ignores_order() -> None:
    """The sum of hashes does not depend on the order of rows, and changes with a repeated row."""
    hashes = hash_rows(pa.record_batch({"v": list(range(100))}))
    assert sum_of_hashes(hashes) == sum_of_hashes(hashes[::-1])
    assert sum_of_hashes(hashes) != sum_of_hashes(np.append(hashes, hashes[:1]))


@pytest.mark.parametrize("partitions", [1, 7, 16])
def test_partitions_are_even(partitions: int) -> None:
    """Consecutive keys are spread evenly over all partitions."""
    schema = RowSchema((ColumnDef("id", "int64", False),), ("id",), ("id",), partitions)
    counts = np.bincount(partitions_of(pa.record_batch({"id": np.arange(20_000)}), schema), minlength=partitions)
    assert len(counts) == partitions
    assert counts.max() - counts.min() < 20_000 / partitions / 5
