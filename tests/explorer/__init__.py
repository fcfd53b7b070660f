"""The explorer: the rebalance protocol run through interleavings and faults that no machine would show in a lifetime.

`world` holds everything there is: an in-memory metastore, stores with a sidecar and a raft replica each
(`raft`, `sidecars`), two operators (`operators`) and transactions in flight. Whatever may happen next is an
action; `search` runs them exhaustively up to a bound or at random far past it, `invariants` are checked after
each, and `settle` demands that all ends well once faults stop. `mutations` puts known bugs back, each of which
must be found.
"""
