"""Rows as Arrow batches, and the rules for them that stores and clients share.

Needs pyarrow, which the extras `store`, `client` and `spark` install.

Modules:
    row_schema      the columns and keys of a table, as they are logged and sent
    row_values      the JSON notation of values
    conform         converts batches to the schema of a table, or rejects them
    row_hashing     a stable hash of each row
    partitioning    which partition a row belongs to
"""
