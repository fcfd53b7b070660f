"""The program `evenkeel-raft`: one per store, beside its state machine.

options   flags and environment, checked
logs      structured logs
http      a small HTTP server for probes and tools
metrics   what Prometheus reads
status    what people and tools read
sidecar   host and agent, run together, and their orderly end
main      the command line
"""
