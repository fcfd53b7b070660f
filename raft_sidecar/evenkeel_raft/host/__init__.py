"""All replicas of one store in one process: raft's core joined with the log, the peers and the state machine.

    settings     times and sizes
    labels       what the log keeps of a replica beside its entries
    slots        so many at a time, where that number can change
    version_file the cluster version that the volume has seen
    throttles    the limits for snapshots, as the metastore last said
    ports        what a replica is lent by its host
    replica      one replica: what its node wants done, begun; proposals and reads, answered
    arrivals     snapshots from peers that are not restored yet
    views        a replica as agent, reports, tools and probes see it
    applier      what one replica has with its state machine: open, apply, restore
    filler       snapshots that a leader sends to members that its log cannot bring up to date
    inquiries    whether a replica is still a member: asked of leaders, and answered
    pump         which replicas have something to do, all of them once per turn of the loop
    attendance   whether the state machine still answers
    upkeep       ticks, sleep, compaction, hand-overs
    peer_side    messages and snapshots from other stores
    machine_side requests from the state machine
    host         all of these, and what the agent asks of them

One event loop runs everything; the log has a thread of its own. A disk that fails ends the process.
"""
