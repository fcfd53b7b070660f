"""Which partition a row belongs to: the hash of its partition key modulo the number of partitions.

Clients split rows by partition, and stores reject rows that belong to another partition.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from evenkeel.rows.row_hashing import hash_rows
from evenkeel.rows.row_schema import RowSchema

__all__ = ["partitions_of"]


def partitions_of(rows: pa.RecordBatch | pa.Table, schema: RowSchema) -> NDArray[np.int64]:
    """Return the partition of each row; the rows need the columns of the partition key, with the table's types."""
    if schema.partitions == 1:
        return np.zeros(rows.num_rows, np.int64)
    hashes = hash_rows(rows.select(list(schema.partition_key)))
    return (hashes % np.uint64(schema.partitions)).astype(np.int64)
