"""The sidecar half of the rebalance protocol on real raft groups and the real metastore."""
