"""Access to the API server of Kubernetes, for the operator and for `kubectl evenkeel`.

Modules:
    api_connections   HTTP connections whose closing can be awaited
    kube_client       requests to the API server, and their errors
    kubeconfig        finds the API server, credentials and namespace like kubectl
    object_kinds      the kinds of objects and their API paths
    port_forward      local ports that the API server forwards to pods
"""
