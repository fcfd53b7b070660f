"""What every long-running process needs: time, retries, files, flags, logs and probes.

Modules:
    backoff       exponential backoff with jitter
    clock         time as a dependency: the system clock, and a virtual one for tests
    directories   durable file operations, and a data directory that one process locks
    event_loop    the event loop of sidecars and stores
    flags         command-line flags and environment variables, validated
    gc_tuning     garbage collector settings for processes with millions of long-lived objects
    http_server   a small HTTP server for probes, metrics and status
    log_context   fields that every log line in a block carries
    log_setup     structured logs on standard error
    work_queue    a level-triggered work queue and its workers
"""
