"""Connections between stores: raft messages and snapshot files, moved without interpreting them.

A store never waits for another store here. Messages that cannot be sent are dropped and counted, and raft repeats them.

Modules:
    byte_budget     rate limits for snapshot traffic, per store and per table
    clock_skew      measures how far the wall clocks of two stores are apart
    files           snapshot files, streamed over dedicated connections
    keepalive       detects a connection whose other end is gone
    outbox          bounded queue of raft messages for one peer
    peer_endpoint   dials and accepts connections, up to the exchange of hellos
    peer_frames     frames of the peer protocol and their encoding
    peer_handshake  decides whether two stores may talk to each other
    peer_link       the link to one peer
    peer_links      the links to all peers, for the raft messages of all groups
    peer_tls        TLS contexts from certificate files
    peers           facade over links, snapshot transfers and limits of one store
"""
