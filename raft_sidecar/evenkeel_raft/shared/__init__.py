"""Types that the agent and the host both use.

Modules:
    identity             a store's identity, and the addresses and link settings of its peers
    raft_configurations  conversion between the protocol's configurations (peers) and the core's (numbers)
    raft_groups          the `Groups` protocol: the agent's interface to the raft groups of its store
"""
