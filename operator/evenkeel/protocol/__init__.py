"""The rebalance protocol, pure: both halves as functions from what is to what to write or do.

The operator writes intentions (`partition`, `plan`, `batch`, `table_lifecycle`), the sidecars carry them out
(`leader`, `replica`, `sidecar`). All state is in the metastore and in raft's logs; either half can be killed at
any instruction.
"""
