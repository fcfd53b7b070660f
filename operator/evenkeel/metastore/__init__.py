"""The metastore: a small interface to etcd, its client, an in-memory implementation, and etcd servers.

Modules:
    _diff               changes between two listings, for a watch whose history was compacted
    _etcd_codec         translate metastore types to etcd's protobuf messages and back
    _etcd_connection    open and verify connections to etcd endpoints
    _etcd_errors        classify etcd's errors and translate them
    _etcd_requests      send requests over a shared connection, with safe retries
    _etcd_watch         a watch that survives disconnects and compaction
    etcd_binary         find an etcd server binary on this machine
    etcd_maintenance    free space in an etcd that has reached its quota
    etcd_membership     list, add and remove the members of an etcd cluster
    etcd_metastore      the metastore on etcd
    etcd_server         run etcd servers as child processes
    etcd_settings       endpoints, credentials and timeouts of an etcd client
    leases              keep a lease alive
    memory_metastore    the metastore in memory
    metastore_api       the interface of a metastore and its data types
    mvcc                etcd's data model as a synchronous in-memory store
    operator_epoch      fence off operators that lost their Lease
"""
