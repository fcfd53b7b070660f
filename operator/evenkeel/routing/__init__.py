"""Where tables, partitions and stores are: kept current by events, on every store and in every client.

routes     what is known, and how it is asked for       no IO
following  the metastore's keys, watched
"""
