"""The program `evenkeel-raft`: one sidecar process per store, next to its state machine.

Modules:
    main             the command line
    metrics          Prometheus metrics
    options          flags and environment variables
    sidecar_process  runs host and agent together, and shuts them down
    sidecar_status   the `/status` document and readiness
"""
