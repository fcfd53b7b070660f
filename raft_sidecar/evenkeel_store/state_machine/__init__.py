"""The state machine that the sidecar drives over its socket.

Modules:
    store_state_machine   all groups of a store; answers the sidecar's requests
    apply_queue           the queue of requests and the apply thread
    snapshot_jobs         writes and restores snapshots beside the apply thread
    background_tasks      folding, hashes, size estimates and verification reads
    open_groups           the open groups and their roles
    task_set              background tasks, referenced until they finish
"""
