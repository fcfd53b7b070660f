"""Where tables, partitions and stores are, kept current from the metastore.

Modules:
    routing_table     the routes, built from the metastore's keys without IO
    route_follower    keeps a routing table current by watching the metastore
"""
