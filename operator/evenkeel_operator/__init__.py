"""The operator: the Kubernetes part of Evenkeel.

Watches and listings fill a cache and enqueue what has changed; reconciliation is level-based. Each StoreCluster has the
same table controller as in local mode (`evenkeel.controller`), which reads and writes resources through its `Resources`
protocol.

Modules:
    identity      the seed, certificate authorities, certificates and etcd credentials
    kinds         the kinds that the operator watches, each declared once
    kube          the cache, watches, apply, statuses, Events and the leader's Lease
    manifests     manifests of the objects that the operator creates, as pure functions
    process       the program `evenkeel-operator`
    reconcilers   reconcilers of StoreClusters and Tables
"""
