"""Connections to stores."""

from __future__ import annotations

import os
import socket
import sys
from contextlib import suppress

import pyarrow as pa
import pytest
from pyarrow import flight

from evenkeel.client.store_connections import Connections


def silences(port: int) -> set[int]:
    """How long each connection of this process to a port waits for acknowledgements, in milliseconds."""
    found = set()
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(OSError), socket.socket(fileno=os.dup(int(descriptor))) as known:
            if known.family in (socket.AF_INET, socket.AF_INET6) and known.getpeername()[1] == port:
                found.add(known.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT))
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
def test_nobody_waits_for_a_pod_that_has_gone_without_a_word() -> None:
    """What is sent and not acknowledged within ten seconds ends a connection, long before a call's time is up."""
    with flight.FlightServerBase("grpc://127.0.0.1:0") as server:
        connections = Connections()
        with pytest.raises(pa.ArrowNotImplementedError):
            list(connections.to(f"grpc://127.0.0.1:{server.port}").list_actions(connections.options(5.0)))
        assert silences(server.port) == {10_000}
        connections.close()
