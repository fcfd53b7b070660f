"""One write-ahead log for all raft groups of a sidecar: one fsync makes a round of all of them durable.

    records     what the log is told, and how it is spelled
    frames      a round on disk: its records under one checksum; and the header of a segment
    disk        the few things the log asks of a file system
    volume      whose log it is
    heads       whether a record may follow the ones before it
    extents     where the live entries of one group are
    index       what is still needed of every round
    segments    files in use and in reserve
    recovery    from files to groups
    collect     moving what is needed out of the oldest segment
    wal         the log itself, synchronous and deterministic over a `disk`
    writer      the thread that owns it, for an event loop

A round is a frame, atomic: after a crash all of its records are there or none. The next round is written only when the
one before is durable, so a readable round proves every earlier one; an unreadable round is the torn tail if nothing
proves it, and damage otherwise. Segments are freed in the order they were written, after their live records were copied
to the end of the log; whatever ended the life of a record was written later than it, so nothing dead comes back.
"""
