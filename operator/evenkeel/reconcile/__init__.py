"""Level-based reconciliation without IO: computes requests that bring the metastore closer to the desired state.

A reconciliation is a generator of requests (`reconcile_requests`), which `evenkeel.driver` runs on a real metastore and
tests run on a simulated one. It keeps no state between runs, so it can be stopped anywhere and run again.

Modules:
    cluster_status        a StoreCluster's status
    cluster_version       when the cluster version rises
    desired_table         the desired state of a table, resolved from the user's resources
    dropped_tables        deleted tables with retained data: keep, restore, maintain, adopt
    known_stores          all stores at one revision, decoded once for all tables
    leader_orders         orders that hand leaderships over to preferred stores
    lost_stores           when the replicas of a lost store are replaced
    metastore_adoption    detects a different metastore, and adopts it on request
    outages               why a partition is unavailable
    partition_sizes       sizes of partitions, from the stores' reports
    partition_status      statuses of partitions and PartitionAssignments
    plan_admission        which partitions may start to move now
    plan_moves            the moves that are stored with plans
    plan_status           statuses of RebalancePlans
    planning              the current plan, and when a new one is made
    readiness             the condition Ready of every kind of resource
    reconcile_requests    the requests that a reconciliation yields, and their answers
    replica_caps          how much of each store's cap other tables use
    store_reports         the stores' newest reports, indexed by table
    store_states          the operator's decisions about each store
    table_snapshot        one table's keys and all stores at one revision
    table_status          a Table's status
    table_steps           the steps of a table's reconciliation, in order
    table_validation      refuses desired states that a table can never reach
    what_if               applies a dry run's `whatIf`
"""
