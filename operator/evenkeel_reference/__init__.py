"""The reference state machine: a program that keeps a key-value map per raft group behind the state-machine socket.

    python -m evenkeel_reference --socket PATH --data DIR --listen HOST:PORT

It is the smallest program that does everything a state machine must do: it makes state, applied index and write tokens
durable in one transaction, takes and restores snapshots with checksums, and computes hashes to compare replicas. Tests
of the sidecar run it, and authors of other state machines can read it together with docs/state-machines.md.

Modules:
    reference_entries     the entries that are logged
    reference_state       the groups and their keys in one SQLite file
    reference_snapshot    a group as snapshot files, and back
    reference_machine     the state machine that answers the sidecar's requests
    reference_server      the TCP server for clients
    reference_client      a client of the server
    batching_client       a client that puts small writes into shared entries
"""
