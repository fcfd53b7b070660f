"""Rows as they travel: Arrow batches, and what stores and clients must agree on about them.

    schema      a table's columns and keys in the form that is logged and sent
    values      what a value looks like in JSON, in Python and in Arrow
    conform     a batch brought into a table's shape, or refused
    hashing     a hash of each row, the same wherever it is taken
    partitions  which partition a row belongs to

Needs pyarrow (the extras `store` and `spark`); nothing else of the library does.
"""
