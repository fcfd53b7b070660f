"""The program `evenkeel-operator`: two replicas, one of which leads.

options   what it is told by flags and environment
metrics   what Prometheus reads
operate   candidate, leader, and the orderly end of both
main      the command line
"""
