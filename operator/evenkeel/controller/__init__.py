"""Keeps the tables of one StoreCluster at what their users want: reconciles, judges stores, writes statuses.

resources    what the controller asks of whoever keeps resources: Kubernetes, or a key in etcd
controller   the loop, level-based: whatever happens only says what to look at again
worklist     what to look at again, and when: bursts are one look, and one look at a time for each
ground       what looks share: the metastore, the epoch, the clocks
mirror       the metastore in memory, kept by a watch: what looks read
tables       one look at a table
dropped      deleted tables whose data is kept
plans        the RebalancePlans of a table
stores       one look at the stores
statuses     statuses written where they changed, and not too often
"""
