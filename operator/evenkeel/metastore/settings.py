"""How to reach etcd: the one settings object that the operator, the sidecars and the command line fill in."""

from __future__ import annotations

from pathlib import Path

import msgspec

from evenkeel.errors import InvalidInputError

__all__ = ["EtcdSettings"]

_SCHEMES = ("http", "https")


class EtcdSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Endpoints, credentials and patience."""

    endpoints: tuple[str, ...] = ("http://127.0.0.1:2379",)
    """Members of one cluster, as URLs; any that answers will do."""

    ca: Path | None = None
    """What signed the servers' certificates; None trusts what the machine trusts."""
    cert: Path | None = None
    key: Path | None = None
    server_name: str = ""
    """The name to expect in the servers' certificates where it is not the endpoint's own."""

    user: str = ""
    password: str = ""

    request_timeout: float = 5.0
    """Seconds for one request, all its retries included."""
    connect_timeout: float = 2.0
    """Seconds for one endpoint to prove that it is alive."""
    progress_interval: float = 5.0
    """Seconds of silence after which a watch asks the server how far it is."""
    stall_timeout: float = 3.0
    """Seconds a watch then waits for any answer before it goes to another endpoint."""
    page_keys: int = 5000
    """Keys per request when a large prefix is listed."""

    def __post_init__(self) -> None:
        if not self.endpoints:
            raise InvalidInputError("etcd endpoints: none given; name at least one, like http://127.0.0.1:2379")
        for endpoint in self.endpoints:
            _check_endpoint(endpoint)
        if (self.cert is None) != (self.key is None):
            raise InvalidInputError("etcd client certificate: cert and key belong together, give both or none")
        if bool(self.user) != bool(self.password):
            raise InvalidInputError("etcd credentials: user and password belong together, give both or none")

    def __repr__(self) -> str:
        return f"EtcdSettings(endpoints={self.endpoints!r}, user={self.user!r})"


def _check_endpoint(endpoint: str) -> None:
    scheme, separator, address = endpoint.partition("://")
    _, colon, port = address.rpartition(":")
    if not separator or scheme not in _SCHEMES or not colon or not port.isdecimal():
        raise InvalidInputError(f"etcd endpoint {endpoint!r}: not of the form http://host:port or https://host:port")
