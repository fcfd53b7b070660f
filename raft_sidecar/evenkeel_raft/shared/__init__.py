"""Types that the agent and the host both use.

Modules:
    configurations   conversion between the protocol's configurations (peers) and the core's (numbers)
    groups           the `Groups` protocol: what the agent asks of the raft groups of its store
    identity         who a store is, and where its peers are
"""
