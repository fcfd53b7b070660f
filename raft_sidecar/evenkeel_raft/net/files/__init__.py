"""Snapshots as files, from store to store.

    manifest  names, sizes and checksums                            reads files
    partial   what has arrived of a snapshot so far                 writes files
    sender    streams a snapshot, over as many connections as it takes
    receiver  takes snapshots in
    meter     how fast they come in                                  no IO

Reading, writing, hashing and syncing happen on threads; the event loop only moves bytes.
"""
