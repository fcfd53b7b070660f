"""Background work of leaders: expiry, log time, and the comparison and repair of replicas.

Modules:
    leader_maintenance   logs new columns, log time and what has expired
    expiry_clock         ages of what waits to expire, before log time is kept
    replica_comparison   compares the rows of all replicas periodically
    replica_repair       rebuilds a replica whose rows differ from the majority's
    peer_stores          asks other stores, as a Flight client
"""
