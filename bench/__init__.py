"""Benchmarks: one module per subject, run by `make bench`.

A subject's module has `rows() -> Iterator[Row]` and yields each row as soon as it is measured. Where a target is
relative to a reference (etcd's own throughput, rendezvous hashing), both are measured in the same run, because machines
are noisy and only ratios are comparable between them.

Modules:
    _operator_changes   changes tables at a steady rate and measures when keys and statuses show it
    _operator_sidecars  models the sidecars of a thousand stores in one process
    _operator_world     control plane, kwok nodes, etcd and the operator
    _plain_copy         reference: a file copied through one socket
    _planner_cases      inputs of the planner and the rendezvous reference
    _planner_million    plans a million partitions in its own process
    _pysyncobj_node     reference: one PySyncObj node
    _raft_catch_up      time to build a new replica
    _raft_commit        commit latency and throughput of large entries
    _raft_failover      time without a leader after a crash
    _raft_idle          CPU cost of idle groups
    _raft_log           the shared log
    _raft_net           links between stores, and the state machine socket
    _raft_sides         the clusters under test: three stores, three etcd members
    _raft_small         throughput of many concurrent small writes
    _store_cluster      a table on three stores
    _store_moves        the cost of moving replicas
    _store_rows         table and batches of the store benchmarks, and the DuckDB reference
    _turns              alternating measurement windows
    etcd                subject: a plan's writes to etcd
    operator            subject: the operator at scale
    planner             subject: the planner
    raft                subject: raft and its log
    report              result rows as a live table and as JSON lines
    spark               subject: Spark reads and writes
    store               subject: one store and a cluster of three
"""
