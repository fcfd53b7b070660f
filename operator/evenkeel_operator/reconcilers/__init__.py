"""Reconcilers: they bring objects to the state that users ask for.

Modules:
    client_secrets              client Secrets in other namespaces
    cluster_controllers         one table controller for each StoreCluster
    cluster_lookup              finds the keys, StatefulSet, pods and nodes of a StoreCluster
    cordons                     inhibits the leadership of stores on cordoned nodes
    kube_resources              the resources of one StoreCluster for its controller
    operator_context            what the reconcilers of one leader's term share
    pod_conditions              conditions for pods, missing permissions and invalid specs
    pod_rollout                 which pod a rollout replaces next
    store_cluster_deletion      steps that delete a StoreCluster
    store_cluster_objects       steps that apply the objects of a StoreCluster
    store_cluster_reconciler    the steps of each stage of a StoreCluster
    store_cluster_status        pods, zones and problems in a StoreCluster's status
    store_zones                 zones of stores, from nodes or overrides
    surplus_stores              stores beyond the desired number, and what they hold
    table_resource_reconciler   finalizers and problems of Table objects
    volume_claims               owner and deletion of volume claims
"""
