"""The program `evenkeel-operator`: several replicas, one of which leads.

Modules:
    etcd_member        prepares the start of a member of the bundled etcd
    leader_term        one replica's term as leader
    main               the command line
    operator_health    health for probes, metrics and the status page
    operator_metrics   Prometheus metrics
    operator_options   flags and environment
    operator_process   one replica: candidate, leader, probes and background checks
    uninstall_guard    refuses an uninstall while Tables or StoreClusters exist
"""
