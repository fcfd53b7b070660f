"""The table store: the state machine beside a raft sidecar that stores rows, and its Arrow Flight server.

Imports go down the list only. docs/store.md describes what clients see, and the design.

Modules:
    process         the program `evenkeel-store`
    maintenance     background work of leaders: expiry, log time, comparison and repair of replicas
    serving         client requests: the Arrow Flight server and the service behind it
    state_machine   the sidecar's requests, the threads that carry them out, and background work
    engine          rows, metadata and snapshots of all groups in one DuckDB database
"""
