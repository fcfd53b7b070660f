"""One write-ahead log for all raft groups of a store: one fsync makes a round of records of many groups durable.

A round is one frame and atomic: after a crash all of its records are present or none. A round is written only when the
previous one is durable, so a readable round proves that every earlier one was durable. An unreadable round is a torn
write if no later round is readable, and damage otherwise. Segments are freed in the order they were written, after
their live records were copied to the end of the log. The record that supersedes another is always written after it, so
freeing the oldest segment never revives a superseded record.

Modules:
    entry_extents      which rounds hold the live entries of one group
    live_index         which rounds hold live records, and how many bytes of each round are live
    log_disk           file system operations that the log needs
    log_frames         encoding of rounds and segment headers on disk
    log_heads          validation of records against each group's newest state
    log_rebuild        conversion of a replayed log into groups, index and heads
    log_records        record types of the log and their encoding
    log_recovery       reading of segment files: durable rounds, torn writes and damage
    log_replay         replay of records into groups
    log_volume         the file that identifies the log's volume
    log_writer         the thread that owns the log, with an API for an event loop
    round_queue        records waiting to be written, and the choice of the next round
    segment_collector  garbage collection: copies live records out of the oldest segment
    segments           segment files in use and spare ones
    shared_log         the log itself, synchronous and deterministic over a `Disk`
"""
