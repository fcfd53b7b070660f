"""The agent: the sidecar half of the rebalance protocol, run on real raft groups and a real metastore.

Modules:
    agent                  one store's agent: metastore sessions and the reconcile loop
    agent_context          the dependencies that all parts of an agent share
    agent_counters         counters that the process exports as metrics
    agent_settings         settings, and those of them that change at run time
    agent_status           states and status of the agent
    cluster_version_watch  the cluster version in force and the versions that the store announces
    key_mirror             metastore keys as last known from watches and reads
    leader_driver          the leader's actions: transactions, proposals and transfers
    leader_records         publishes and withdraws the keys `leaders/<t>/<p>`
    leadership_inhibition  the reasons for which the store leads nothing
    leadership_transfers   transfers of single leaderships
    metastore_guard        detects a metastore that is not the one this volume follows
    metastore_watch        the watches of one session and the handlers of their events
    ordered_transfers      transfers that the operator orders by `leader.target/<t>/<p>`
    partition_agent        sans-IO state of one partition between two events
    partition_jobs         background jobs, at most one for each partition
    partition_reader       batched linearizable reads of partitions' keys
    partition_retries      retries with exponential backoff for each partition
    peer_registry          addresses of the other stores
    replica_lifecycle      starts and deletes replicas
    report_budget          selects the keys of a store's report to write within a byte budget
    store_registration     registers the store under a lease
    store_report           reports load, sizes and problems of the store
    table_drops            deletes the replicas of dropped tables and confirms the drops
    table_states           records and tombstones of tables
    tracked_partitions     the partitions that concern this store
    write_batcher          batches writes that depend on one key each
"""
