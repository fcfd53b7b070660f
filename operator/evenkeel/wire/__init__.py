"""Messages between processes: frames, the state-machine socket between a raft sidecar and a store, and Arrow Flight.

docs/state-machines.md describes the state-machine socket frame by frame.

Modules:
    framing             where one frame ends and the next begins, and why a connection is dropped
    frame_codec         values to the payloads of frames and back
    payload_pieces      payloads in several pieces, so that large values are not copied
    frame_connection    frames over an asyncio transport
    pending_calls       matches answers with requests
    credit_queue        a queue that limits the unanswered bytes
    socket_messages     the messages of the state-machine socket
    socket_peer         what both ends of the state-machine socket share
    sidecar_socket      the sidecar's end of the state-machine socket
    store_socket        the store's end of the state-machine socket
    unix_paths          paths and buffers of unix sockets
    flight              the messages between clients and stores over Arrow Flight
"""
