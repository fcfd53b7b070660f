"""The explorer: runs the rebalance protocol through interleavings and faults that are too rare to test on machines.

Everything that may happen next in a `world` is an action. `search` runs actions exhaustively up to a bound, or at
random far beyond it. Invariants are checked after each action, and at the end the last target must be reached.

Modules:
    faults              actions of users, machines and networks, within a budget
    faulty_functions    faulty replacements for functions, for `mutations`
    fingerprint         hash of a world, for exhaustive search
    invariants          what must hold after each step and at the end
    mutations           known bugs that the explorer must find
    operators           actions of the operators
    raft                a simplified model of a raft group
    scenarios           initial worlds, small or random
    search              random walks, exhaustive search and replay
    sidecars            actions of a store's sidecar, with its real agent
    test_explorer       the tests
    world               the state of a run: metastore, stores, operators, transactions in flight
"""
