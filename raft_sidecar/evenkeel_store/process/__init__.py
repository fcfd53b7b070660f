"""The program `evenkeel-store`: one per store, beside its raft sidecar.

Modules:
    main            the command line
    options         flags and environment
    store_process   runs all parts together, and stops them in order
    metrics         Prometheus metrics
"""
