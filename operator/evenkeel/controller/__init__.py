"""The controller of one StoreCluster: reconciles stores and tables and writes their statuses.

Modules:
    controller                  the loop: enqueues what changed, reconciles it, reports what concerns every table
    controller_context          what the reconcilers share: metastore, epoch, clocks, mirror, reports
    dropped_table_reconciler    reconciles deleted tables with retained data
    error_problems              maps errors to the reasons and messages of conditions
    metastore_mirror            in-memory copy of the StoreCluster's keys, maintained by a watch
    plan_reconciler             reconciles the RebalancePlans of a table
    resources_api               the resources a controller reads and writes: Kubernetes objects, or keys in local mode
    status_writer               writes statuses that changed, at a limited rate
    store_reconciler            reconciles the stores and the StoreCluster's status
    table_reconciler            reconciles one table
"""
