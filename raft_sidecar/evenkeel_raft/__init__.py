"""The raft sidecar: consensus, log and membership changes for all groups of one store pod.

Modules:
    agent       the protocol's sidecar half: reconciles this store's replicas with the metastore
    core        the Raft consensus algorithm without IO
    errors      the exceptions of the log
    host        runs the raft groups of one store
    log         one write-ahead log for all raft groups of a store
    net         connections to peers: messages, snapshots and clock skew
    process     the sidecar's process: command line, HTTP endpoints and metrics
    shared      types that the agent and the host both use
"""
