"""The program `evenkeel-raft`: one per store, beside its state machine.

options   what it is told by flags and environment
metrics   what Prometheus reads
status    what people and tools read
sidecar   host and agent, run together, and their orderly end
main      the command line
"""
