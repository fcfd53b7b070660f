"""Stores among themselves: raft messages and snapshot files, moved without knowing what is in them.

    peers      all of this for one store
    links      the link to each peer (`link`), for the raft messages of all groups
    outbox     messages that wait for their turn, coalesced and bounded                  no IO
    files      snapshots, streamed over connections of their own
    budget     bytes per second for everything that is not urgent
    endpoint   connections, dialled and accepted, up to the exchange of hellos
    handshake  who may talk to us                                                        no IO
    frames     what goes over a connection                                               no IO
    identity   who a store is, and where its peers are                                   no IO

One store never waits for another here: what cannot be sent is dropped and counted, and raft repeats it.
"""
