"""Manifests of the objects that the operator creates for a StoreCluster, as pure functions.

Modules:
    cert_manager   Issuers and Certificates for cert-manager
    object_names   names, labels, annotations and ports of objects
    pod_settings   settings of store pods from the operator's flags
    secrets        Secrets for clients, stores and etcd members
    stateful_set   StatefulSet, Service, PodDisruptionBudget and ServiceAccount
    store_pod      pod of one store: the raft sidecar and the store container
"""
