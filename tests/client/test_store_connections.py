"""`Connections` to stores."""

from __future__ import annotations

import os
import socket
import sys
from contextlib import suppress

import pyarrow as pa
import pytest
from pyarrow import flight

from evenkeel.client.store_connections import Connections


def user_timeouts(port: int) -> set[int]:
    """Return TCP_USER_TIMEOUT of each connection of this process to a port, in milliseconds."""
    found = set()
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(OSError), socket.socket(fileno=os.dup(int(descriptor))) as known:
            if known.family in (socket.AF_INET, socket.AF_INET6) and known.getpeername()[1] == port:
                found.add(known.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT))
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and TCP_USER_TIMEOUT")
def test_a_connection_to_a_vanished_pod_is_closed() -> None:
    """A connection is closed if sent data is not acknowledged within ten seconds, well before a call's deadline."""
    with flight.FlightServerBase("grpc://127.0.0.1:0") as server:
        connections = Connections()
        with pytest.raises(pa.ArrowNotImplementedError):
            list(connections.to(f"grpc://127.0.0.1:{server.port}").list_actions(connections.options(5.0)))
        assert user_timeouts(server.port) == {10_000}
        connections.close()
