"""The program `evenkeel-operator`: two replicas, one of which leads.

options   what it is told by flags and environment
metrics   what Prometheus reads
operate   candidate, leader, and the orderly end of both
farewell  what stands in the way of an uninstall
main      the command line
"""
