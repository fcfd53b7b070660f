"""The table store: the state machine beside a raft sidecar that holds rows, and the Arrow Flight server on it.

Rows:

    entries       what is logged                                                                        no IO
    tokens        which writes were applied                                                             no IO
    heads         what is known of a group beside its rows                                              no IO
    layout        the DuckDB tables that hold a group's rows, and the SQL that reads them                no IO
    database      one DuckDB file
    journal       heads and tokens in that file, one row for each transaction
    groups        a group while the process runs
    logtime       what time it is for a group, whatever wall clocks say                                 no IO
    ages          how long a leader has seen what waits to expire, before log time is kept             no IO
    drafts        entries of one group on their way into a transaction
    engine        all groups: opening, applying, restoring, destroying
    folding       recent rows merged into the partitions' tables
    snapshots     a group as Parquet files, and back
    upkeep        folding, hashes and sizes, behind the writers' back
    sizing        how many bytes a snapshot of a group would have
    directory     where the files are
    machine       the state machine's half of the socket: an event loop, a thread that applies, threads that copy

Clients:

    queries       what a client asks for, as SQL                                                        no IO
    reading       rows read while tables change
    scans         requests carried out, in batches
    freshness     from which index on a read may be answered
    service       finding partitions, waiting for indexes, having entries logged
    housekeeping  what a leader logs of its own accord
    flight        the Arrow Flight server
    process       the program `evenkeel-store`

docs/store.md tells what clients see, and why it is built like this.
"""
