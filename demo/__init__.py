"""`make demo`: what there is of Evenkeel so far, on this machine alone.

Real: etcd, its keys and transactions, the models, the planner, and the decisions of operator and sidecars. Modelled,
until stores exist: the raft groups behind those decisions (`sidecars`), whose copying of data is a matter of waiting.
"""
