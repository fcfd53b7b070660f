"""Endpoints, credentials and timeouts of an etcd client, and their command-line flags."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from evenkeel.errors import InvalidInputError
from evenkeel.runtime.flags import Flag, Flags

__all__ = ["ETCD_FLAGS", "EtcdSettings", "etcd_settings"]

_SCHEMES = ("http", "https")

ETCD_FLAGS: Final = (
    Flag("etcd-endpoints", "etcd URLs, separated by commas", "http://127.0.0.1:2379"),
    Flag("etcd-ca", "CA file that etcd's certificates are verified with"),
    Flag("etcd-cert", "client certificate file for etcd"),
    Flag("etcd-key", "key file of the client certificate"),
    Flag("etcd-server-name", "name to expect in etcd's certificates"),
    Flag("etcd-user", "etcd user name"),
    Flag("etcd-password-file", "file with the etcd user's password"),
)


class EtcdSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Endpoints, credentials and timeouts."""

    endpoints: tuple[str, ...] = ("http://127.0.0.1:2379",)
    """URLs of the members of one cluster."""

    ca: Path | None = None
    """CA file for the servers' certificates; None means the system's trust store."""
    cert: Path | None = None
    key: Path | None = None
    server_name: str = ""
    """The name to expect in the servers' certificates, if it is not the endpoint's host."""

    user: str = ""
    password: str = ""

    request_timeout: float = 5.0
    """Seconds for one request, including its retries."""
    connect_timeout: float = 2.0
    """Seconds for connecting to one endpoint."""
    progress_interval: float = 5.0
    """Seconds of silence after which a watch requests the server's progress."""
    stall_timeout: float = 3.0
    """Seconds that a watch then waits for a response before it moves to another endpoint."""
    page_keys: int = 5000
    """Keys per request when a large prefix is listed."""

    def __post_init__(self) -> None:
        if not self.endpoints:
            raise InvalidInputError("etcd endpoints: none given; give at least one, like http://127.0.0.1:2379")
        for endpoint in self.endpoints:
            _check_endpoint(endpoint)
        if (self.cert is None) != (self.key is None):
            raise InvalidInputError("etcd client certificate: only one of cert and key is given; give both or none")
        if bool(self.user) != bool(self.password):
            raise InvalidInputError("etcd credentials: only one of user and password is given; give both or none")

    def __repr__(self) -> str:
        return f"EtcdSettings(endpoints={self.endpoints!r}, user={self.user!r})"


def etcd_settings(flags: Flags) -> EtcdSettings:
    """Return the settings given by `ETCD_FLAGS`."""
    return EtcdSettings(
        endpoints=tuple(filter(None, flags.text("etcd-endpoints").split(","))),
        ca=flags.path("etcd-ca"),
        cert=flags.path("etcd-cert"),
        key=flags.path("etcd-key"),
        server_name=flags.text("etcd-server-name"),
        user=flags.text("etcd-user"),
        password=flags.secret("etcd-password-file"),
    )


def _check_endpoint(endpoint: str) -> None:
    scheme, separator, address = endpoint.partition("://")
    _, colon, port = address.rpartition(":")
    if not separator or scheme not in _SCHEMES or not colon or not port.isdecimal():
        raise InvalidInputError(f"etcd endpoint: got {endpoint!r}; allowed: http://host:port or https://host:port")
