"""The raft sidecar: consensus, log and peer changes of all groups of one store pod."""
