"""The engine: rows, metadata and snapshots of all groups in one DuckDB database.

Modules:
    table_engine        all groups: opening, applying, restoring, destroying
    apply_batch         entries of one group on their way into a transaction
    log_entries         the entries of the log and their encoding
    group_state         a group in memory
    group_metadata      a group's metadata, and the step that one transaction makes
    write_tokens        which writes were applied, and their results
    log_time            each partition's own clock, independent of wall clocks
    table_layout        the DuckDB tables of a group and the SQL that reads them
    folding             merges recent rows into the partitions' tables
    row_reader          reads rows while tables change
    database            one DuckDB file and the meaning of its errors
    journal             metadata and write tokens in the database, one row per transaction
    commit_watermark    the number of the last durable transaction, in a file
    snapshot_files      a group as Parquet files, and back
    snapshot_throttle   limits how fast snapshots are written and loaded
    size_estimator      estimates the bytes of a group's snapshot
"""
