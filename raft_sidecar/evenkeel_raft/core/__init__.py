"""Raft without IO: one replica of one group as a value that is fed and asked.

Shaped after etcd-io/raft: joint consensus with logged learners, pre-vote and check-quorum, ReadIndex, and output
split by durability. No IO, no clock, no global randomness; see `rawnode` for how it is driven and `state` for what
must hold.
"""
