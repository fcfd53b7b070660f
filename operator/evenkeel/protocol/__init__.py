"""The rebalance protocol as pure functions: the metastore's keys and records, and what each side writes next.

The operator writes targets (`operator_decision`, `stored_plan`, `plan_run`, `table_lifecycle`). The sidecars apply
them (`leader_decision`, `replica_decision`, `leader_transactions`). All state is in the metastore and in the raft
logs, so either side can be killed at any instruction.

Modules:
    change_steps            split a change of peers into safe raft configurations; assign replica ids
    group_configuration     a raft group's configuration: peers, outgoing voters, staged learners, change token
    keys                    names of all metastore keys of one StoreCluster
    leader_decision         the next action of a raft group's leader
    leader_transactions     the leader's metastore transactions and their preconditions
    operator_decision       what one new target writes for one partition
    partition_view          one partition's keys as read at one revision
    plan_run                apply a plan to all partitions of a table in batched transactions
    records                 the types and JSON encoding of metastore values
    replica_decision        when a sidecar starts or may delete a replica
    stored_plan             write and read numbered plans in the metastore
    table_lifecycle         transactions that create, keep, restore, adopt and drop a table
"""
