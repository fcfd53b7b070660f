"""All replicas of one store in one process: raft's core connected with the log, the peers and the state machine.

One event loop runs everything; the log has its own thread. A disk that fails ends the process.

Modules:
    applier                opens, feeds and restores the state machine of one replica
    caught_up              decides whether a replica has caught up with its group
    host                   all replicas of one store, as the agent drives them
    host_context           what the parts of a host share
    host_maintenance       timers, sleep, compaction and hand-over of leadership
    host_settings          times and sizes of a host
    host_status            what probes, metrics and the status page read of a host
    log_compaction         compacts the log of one replica
    log_retention          how much of its log each group keeps
    membership_checks      asks leaders whether a replica is still a member, and answers
    peer_handler           handles messages and snapshots from other stores
    proposals              proposals of one replica that wait for their outcome
    raft_replica           one replica: connects its raft node with everything else
    read_requests          linearizable reads of one replica
    ready_queue            replicas with work, each processed once per turn of the event loop
    received_snapshots     snapshots from peers that are not restored yet
    replica_label          what the log stores about a replica besides its entries
    replica_set            the replicas that a volume holds
    replica_views          a replica as the agent, reports and the status page see it
    snapshot_sender        sends snapshots to members that the log cannot bring up to date
    snapshot_slots         bounds the number of concurrent snapshots
    snapshot_throttles     throttles for the snapshots of the whole store
    state_machine_handler  handles requests from the state machine
    state_machine_health   detects a state machine that hangs
    volume_files           small JSON files on the volume beside the log
"""
