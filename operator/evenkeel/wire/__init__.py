"""What processes say to each other: frames, and the socket between a raft sidecar and the state machine beside it.

    frames      where one frame ends and the next begins; why one is dropped        no IO
    codec       values to frames and back                                           no IO
    messages    the kinds of the state-machine socket                               no IO
    calls       which answer belongs to which request                               no IO
    connection  frames over an asyncio transport
    sidecar_end, store_end   the two ends of the state-machine socket

docs/state-machines.md describes the socket frame by frame.
"""
