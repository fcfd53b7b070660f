"""The demo, `make demo`: a table is read and written while its replicas move, then every row is verified.

Modules:
    charts      time series as SVG
    checks      the checks at the end
    cluster     a local cluster of six stores, controlled with the CLI's commands
    command     command line and exit code
    facts       everything that was recorded, for the report
    interrupts  Ctrl-C and SIGTERM handling
    load        concurrent reads and writes, and a ledger of acknowledged rows
    report      the HTML report
    screen      live output in a terminal, plain lines in a pipe
    spark       loads the rows with PySpark and compares them at the end
    statistics  percentiles, time windows and counters
    story       the steps of the demo, in order
    watch       samples leaders, replicas and copied bytes twice a second
"""
