"""A whole cluster on one machine: real etcd, real sidecars and stores as processes, the same reconcile code.

layout       where everything is, and who runs it
children     processes that end with the one that started them
stores       for each store a raft sidecar and a table store
resources    resources as keys in etcd, with what an API server would do: generations, refusals, statuses
supervisor   etcd, the stores that StoreClusters ask for, and a controller for each
"""
