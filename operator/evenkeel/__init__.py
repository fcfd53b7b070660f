"""Evenkeel: raft-replicated, partitioned tables.

Modules:
    cli             the commands `evenkeel` and `kubectl evenkeel`
    client          the Python client of tables, sync and asyncio
    controller      the controller of one StoreCluster: reconciles stores, tables and plans
    driver          runs the reconcilers' generators on a metastore
    errors          every exception, with its tree
    kube            access to the API server of Kubernetes
    local           a cluster of processes on one machine
    metastore       etcd behind one API, and an in-memory implementation
    model           resources as users write them, and the views of planner and rebalancers
    planner         the placement algorithm
    protocol        the rebalance protocol as pure functions, and its records
    rebalancers     the bundled rebalancers, and the process that runs user-defined ones
    reconcile       level-based reconciliation of tables, stores and plans, without IO
    routing         routes of a table, followed in the metastore
    rows            rows in Arrow: schemas, values, partitions, hashes
    runtime         time, retries, files, flags, logs and probes of long-running processes
    versions        the cluster version, which gates new formats
    wire            frames and messages between processes
"""
