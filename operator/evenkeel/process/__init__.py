"""What Evenkeel's long-running processes have in common.

flags   flags and environment, checked
logs    structured logs
subject what their lines are about
http    a small HTTP server for probes and tools
memory  how garbage is looked for
"""
