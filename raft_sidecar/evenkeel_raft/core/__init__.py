"""The Raft consensus algorithm without IO: one replica of one group as a state machine.

Modelled on etcd-io/raft: joint consensus with logged learners, pre-vote and check-quorum, ReadIndex, and output split
by durability. It uses no IO, no clock and no global randomness. `rawnode` is the API; `raft_state` lists the
invariants.

Modules:
    conf_history    the applied configuration and those a snapshot may still need
    confchange      pure functions from a configuration and a change to the next configuration
    election        pre-vote, votes, and elections started by a leadership transfer
    errors          refusals and broken invariants
    follower_role   handling of a leader's messages
    leader_role     replication, commit, reads, leadership transfer and quiescence
    node_view       the read-only half of a node
    quorum          majorities, simple and joint
    raft            message dispatch, terms, timers and client requests
    raft_log        the in-memory log and its positions
    raft_messages   messages between the replicas of a group
    raft_snapshots  snapshots that one replica sends to another
    raft_state      the state of one replica and its role transitions
    raft_status     status of a node for controllers, metrics and debugging
    raft_types      entries, configurations, hard state and settings
    rawnode         the node that a caller drives
    readonly        linearizable reads without log entries (ReadIndex)
    tracker         the leader's view of each member's progress
"""
