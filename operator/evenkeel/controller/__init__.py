"""Keeps the tables of one StoreCluster at what their users want: reconciles, judges stores, writes statuses.

resources    what the controller asks of whoever keeps resources: Kubernetes, or a key in etcd
controller   the loop, level-based: whatever happens only says what to look at again
"""
