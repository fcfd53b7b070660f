"""How to reach etcd: the one settings object that the operator, the sidecars and the command line fill in."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from evenkeel.errors import InvalidInputError
from evenkeel.runtime.flags import Flag, Flags

__all__ = ["ETCD_FLAGS", "EtcdSettings", "etcd_settings"]

_SCHEMES = ("http", "https")

ETCD_FLAGS: Final = (
    Flag("etcd-endpoints", "etcd's URLs, separated by commas", "http://127.0.0.1:2379"),
    Flag("etcd-ca", "what signed etcd's certificates"),
    Flag("etcd-cert", "certificate to show to etcd"),
    Flag("etcd-key", "key of that certificate"),
    Flag("etcd-server-name", "name to expect in etcd's certificates"),
    Flag("etcd-user", "user to log in to etcd as"),
    Flag("etcd-password-file", "file that holds the password"),
)


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


def etcd_settings(flags: Flags) -> EtcdSettings:
    """Return how to reach etcd, as given by `ETCD_FLAGS`."""
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
        raise InvalidInputError(f"etcd endpoint {endpoint!r}: not of the form http://host:port or https://host:port")
