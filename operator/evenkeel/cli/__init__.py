"""The commands `evenkeel`, for a local cluster, and `kubectl evenkeel`, for a namespace of Kubernetes.

Modules:
    app                 the verbs and their options
    cli_reference       generates the commands of docs/cli.md
    cluster_session     what a command works with: resources and plan previews of one cluster
    dropped_commands    dropped, undelete and purge: deleted tables whose data is kept
    force_delete        force-delete: finish a deletion that is stuck
    forwarded_client    a table client outside of Kubernetes, over forwarded ports
    kube_session        a session on a namespace of Kubernetes
    lazy_module         modules imported on first use
    local_app           the verbs under `evenkeel local`
    local_commands      up, down, status, kill and logs of a local cluster
    local_session       a session on a local cluster
    main                entry points: errors become exit codes
    options             options that several commands share
    resource_commands   verbs on resources of any kind
    resource_output     kinds as users type them, and the columns of each
    shell_completion    names that a shell completes
    sql_command         sql: a query over tables
    store_client        a table client for the cluster a command is for
    table_commands      verbs on tables, partitions, plans and stores
    target_cluster      the cluster a command is for, and the options that select it
    terminal_output     tables, lines and JSON on standard output
    validate_command    validate: check resource files without a cluster
    verify_command      verify: compare the replicas of a table
    watch_output        a listing printed once, or kept up to date
"""
