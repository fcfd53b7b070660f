"""A stable hash of each row.

The hash determines the partition of a row, and the sum of all hashes is compared between replicas. It therefore depends
only on values: not on Arrow's layout (offsets, chunks, bytes under a null), the version of DuckDB or the machine. It is
computed with numpy on whole columns.

    word(x)         splitmix64's finaliser over a 64-bit word
    value           its 64-bit words, chained: h = word(h ^ w) from a seed; two words for a decimal; for text and bytes
                    the length, then eight bytes at a time, little-endian, padded with zeros
    long value      past 256 bytes: the length, then the value's BLAKE2b-64 as one word
    null            one fixed word
    row             the values of its columns, chained in the columns' order
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

__all__ = ["LONG_VALUE", "Words", "hash_rows", "sum_of_hashes"]

Words = NDArray[np.uint64]
_Places = NDArray[np.int64]

LONG_VALUE: Final = 256
_SEED: Final = np.uint64(0x9E3779B97F4A7C15)
_NULL: Final = np.uint64(0x6A09E667F3BCC909)
_NAN32: Final = np.uint32(0x7FC00000)
_NAN64: Final = np.uint64(0x7FF8000000000000)


def hash_rows(rows: pa.RecordBatch | pa.Table) -> Words:
    """Return one hash for each row."""
    hashes = np.full(rows.num_rows, _SEED, np.uint64)
    for column in rows.columns:
        array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        hashes ^= _hash_values(array)
        _word(hashes)
    return hashes


def sum_of_hashes(hashes: Words) -> int:
    """Return the sum of hashes, which does not depend on the order of rows."""
    return int(hashes.sum(dtype=np.uint64))


def _word(x: Words) -> None:
    """Apply splitmix64's finaliser in place."""
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)


def _hash_values(array: pa.Array) -> Words:
    kind = array.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        hashes = _hash_bytes(array)
    else:
        hashes = np.full(len(array), _SEED, np.uint64)
        for words in _fixed_words(array):
            hashes ^= words
            _word(hashes)
    if array.null_count:
        hashes[array.is_null().to_numpy(zero_copy_only=False)] = _NULL
    return hashes


def _fixed_words(array: pa.Array) -> list[Words]:
    kind = array.type
    if pa.types.is_boolean(kind):
        return [pc.fill_null(array, False).to_numpy(zero_copy_only=False).astype(np.uint64)]
    if pa.types.is_decimal128(kind):
        pairs = _buffer(array, np.dtype(np.uint64), width=2).reshape(-1, 2)
        return [pairs[:, 0].copy(), pairs[:, 1].copy()]
    if pa.types.is_float32(kind):
        bits = _buffer(array, np.dtype(np.uint32)).copy()
        bits[np.isnan(bits.view(np.float32))] = _NAN32
        return [bits.astype(np.uint64)]
    if pa.types.is_float64(kind):
        wide = _buffer(array, np.dtype(np.uint64)).copy()
        wide[np.isnan(wide.view(np.float64))] = _NAN64
        return [wide]
    signed = _buffer(array, np.dtype(f"i{kind.bit_width // 8}"))
    return [signed.astype(np.int64).view(np.uint64)]


def _buffer(array: pa.Array, kind: np.dtype[np.generic], *, width: int = 1) -> NDArray[Any]:
    """Return the values of a column, `width` items each; those under nulls are arbitrary."""
    begin = array.offset * width
    values = np.frombuffer(array.buffers()[1] or b"", kind)
    return values[begin : begin + len(array) * width]


def _hash_bytes(array: pa.Array) -> Words:
    offsets = np.frombuffer(array.buffers()[1] or bytes(4), np.int32)[array.offset : array.offset + len(array) + 1]
    starts, lengths = offsets[:-1].astype(np.int64), np.diff(offsets).astype(np.int64)
    hashes = np.full(len(array), _SEED, np.uint64) ^ lengths.astype(np.uint64)
    _word(hashes)
    data = array.buffers()[2] or b""
    # Values are read eight bytes at a time, also past the last byte.
    padded = np.frombuffer(bytes(data) + bytes(8), np.uint8)
    long = lengths > LONG_VALUE
    if long.any():
        _chain_long(hashes, padded, np.flatnonzero(long), starts, lengths)
    rows = np.flatnonzero((lengths > 0) & ~long)
    _chain_short(hashes, padded, rows, starts[rows], lengths[rows])
    return hashes


def _chain_short(hashes: Words, data: NDArray[np.uint8], rows: _Places, at: _Places, left: _Places) -> None:
    """Chain eight bytes of all values at a time, until no value has bytes left."""
    eights = np.ndarray(shape=(len(data) - 7,), dtype="<u8", buffer=data, strides=(1,))
    while len(rows):
        words = eights[at].astype(np.uint64)
        short = left < 8
        if short.any():
            words[short] &= (np.uint64(1) << (left[short].astype(np.uint64) * np.uint64(8))) - np.uint64(1)
        words ^= hashes[rows]
        _word(words)
        hashes[rows] = words
        more = left > 8
        rows, at, left = rows[more], at[more] + 8, left[more] - 8


def _chain_long(hashes: Words, data: NDArray[np.uint8], rows: _Places, starts: _Places, lengths: _Places) -> None:
    """Chain long values, with one call of BLAKE2b for each."""
    view, ends = data.data, starts + lengths
    digests = b"".join(hashlib.blake2b(view[starts[row] : ends[row]], digest_size=8).digest() for row in rows)
    words = np.frombuffer(digests, "<u8").astype(np.uint64) ^ hashes[rows]
    _word(words)
    hashes[rows] = words
