"""A key-value store behind the state-machine socket, in a process of its own.

It is the smallest thing that does everything a state machine has to do: state, applied index and tokens durable in
one transaction, snapshots with checksums, restore, hashes to compare replicas by. Tests of the sidecar run it, and
people who bring their own state machine read it; docs/state-machines.md walks through it.

    entries   what is logged                       no IO
    state     groups of keys in one SQLite file
    snapshot  a group as files, and back
    machine   the state machine's half of the socket, on a thread of its own
    front     what clients connect to
    client    a client
    batching  small writes of a client that share entries
"""
