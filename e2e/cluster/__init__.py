"""A Kubernetes cluster to test on.

Modules:
    binaries        finds the programs of a cluster
    certificates    keys and identities of a control plane
    cgroups         one cgroup per node
    cluster_errors  errors of clusters and providers
    control_plane   etcd, the API server and the controllers
    current         provider `current`: the user's current context
    images          images as archives that nodes import
    kind            provider `kind`: nodes are Docker containers
    kubectl         kubectl with a kubeconfig
    layers          whether tests that need a cluster may be skipped
    netns           provider `netns`: nodes in network namespaces
    node            one node: containerd, kubelet and kube-proxy
    node_volumes    volumes on the disks of nodes
    processes       commands and daemons
    provider        selects the provider of the cluster
    virtual_network network of a cluster on one machine
"""
