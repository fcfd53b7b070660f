"""Which partition a row belongs to: the hash of its partition key, modulo the number of partitions.

Clients split what they write by it, and stores refuse what was split differently.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from evenkeel.rows.row_hashing import hash_rows
from evenkeel.rows.row_schema import RowSchema

__all__ = ["partitions_of"]


def partitions_of(rows: pa.RecordBatch | pa.Table, schema: RowSchema) -> NDArray[np.int64]:
    """Return each row's partition; the rows are in the table's types and have the columns of the partition key."""
    if schema.partitions == 1:
        return np.zeros(rows.num_rows, np.int64)
    hashes = hash_rows(rows.select(list(schema.partition_key)))
    return (hashes % np.uint64(schema.partitions)).astype(np.int64)
