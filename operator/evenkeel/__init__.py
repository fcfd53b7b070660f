"""Evenkeel: raft-replicated, partitioned tables kept on an even keel."""
