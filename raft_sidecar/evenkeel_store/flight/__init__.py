"""The Arrow Flight server: what any Flight client sees of a store.

    bridge    from the server's threads to the event loop and back, and errors on their way out
    access    tokens
    gets      DoGet, GetFlightInfo, ListFlights: rows out
    puts      DoPut: rows in
    actions   DoAction: lookups, pins, hashes, status, routes
    server    all of it behind one address

Handlers run on threads of gRPC's. They check and convert what they are given there, ask the event loop for what only it
can do, and read from the database by themselves.
"""
