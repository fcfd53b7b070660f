"""The table store: the state machine beside a raft sidecar that holds rows, and the Arrow Flight server on it.

    entries     what is logged                                                                          no IO
    tokens      which writes were applied                                                               no IO
    heads       what is known of a group beside its rows                                                no IO
    layout      the DuckDB tables that hold a group's rows, and the SQL that reads them                  no IO
    database    one DuckDB file
    journal     heads and tokens in that file, one row for each transaction
    drafts      entries of one group on their way into a transaction
    engine      all groups: opening, applying, restoring, destroying
    folding     recent rows merged into the partitions' tables, behind the writers' back
    snapshots   a group as Parquet files, and back
    machine     the state machine's half of the socket: an event loop, a thread that applies, threads that copy

docs/store.md tells what clients see, and why it is built like this.
"""
