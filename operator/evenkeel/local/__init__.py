"""A cluster on one machine: etcd, sidecars and stores as processes, and the same reconcile code as on Kubernetes.

Modules:
    child_processes     processes that are restarted, and end with their parent
    cluster_directory   the files, ports and lock of a local cluster
    local_resources     resources as keys in etcd, with the semantics of an API server
    main                entry point of the supervisor
    store_processes     the two processes of a store
    supervisor          runs etcd, the stores of all StoreClusters, and a controller for each
"""
