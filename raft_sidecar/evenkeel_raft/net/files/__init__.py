"""Snapshot files, streamed from store to store.

Threads read, write, hash and sync files; the event loop only moves bytes.

Modules:
    file_receiver      receives snapshots and measures the throughput
    file_sender        streams a snapshot, over as many connections as needed
    partial_snapshot   a snapshot that has arrived in part
    snapshot_manifest  names, sizes and checksums of a snapshot's files
"""
