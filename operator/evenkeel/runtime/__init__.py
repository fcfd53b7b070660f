"""What every long-running process needs: time, retries, files, flags, logs and probes.

Modules:
    backoff       waits that double between attempts, with jitter
    clock         time as a dependency: the system clock, and a virtual one for tests
    directories   durable file operations, and a data directory that belongs to one process
    event_loop    the event loop that sidecars and state machines run on
    flags         command-line flags and environment variables, checked
    http_server   a small HTTP server for probes, metrics and tools
    log_context   the table or StoreCluster that log lines are about
    logs          structured logs
    memory        garbage collector settings for processes with millions of long-lived objects
"""
