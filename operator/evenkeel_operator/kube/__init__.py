"""Access to the API server that only the operator needs; `evenkeel.kube` has what it shares with `kubectl evenkeel`.

Modules:
    crd_check            checks that the CRDs are those of this release
    event_recorder       Events for transitions of conditions
    kube_status_writer   writes statuses, at a limited rate per object
    leader_lease         leader election by a Lease
    object_applier       server-side apply of objects that the operator owns
    object_cache         cache of the watched objects
    resource_reader      parses cached objects into resource models
    watches              watches of the API server, run by kopf
"""
