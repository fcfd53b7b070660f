"""The program `evenkeel-store`: one per store, beside its raft sidecar.

options   what it is told by flags and environment
metrics   what Prometheus reads
store     machine, socket, routes, housekeeping and Flight, run together, and their orderly end
main      the command line
"""
