"""Client requests: the Arrow Flight server and the service behind it.

Modules:
    flight_server    the Arrow Flight server
    flight_reads     DoGet, GetFlightInfo, GetSchema and ListFlights
    flight_writes    DoPut
    flight_actions   DoAction
    access_tokens    checks the access token of each call
    loop_bridge      calls from Flight threads to the event loop, and error translation
    store_service    finds partitions, waits for indexes, logs entries
    read_indexes     from which applied index on a read may be answered
    scans            requests answered in batches
    request_sql      client requests as SQL
"""
