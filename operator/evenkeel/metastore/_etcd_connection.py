"""Open connections to etcd endpoints and verify them.

aetcd's own client supports neither several endpoints, nor TLS, nor expiring access tokens. So this module opens the
channels and uses only aetcd's generated messages and stubs.

A `Connection` exists only after its endpoint has answered a status request with its cluster's id. So requests are sent
only to a live endpoint, and two clusters are never confused.
"""

from __future__ import annotations

import itertools
from typing import Any

import grpc
from aetcd import rpc

from evenkeel.errors import AuthenticationError, ClusterMismatchError, UnreachableError
from evenkeel.metastore._etcd_errors import (
    is_stale_token,
    is_transient,
    reason,
    refuses_certificate,
    translate,
)
from evenkeel.metastore.etcd_settings import EtcdSettings
from evenkeel.runtime.backoff import Backoff

__all__ = ["Connection", "Metadata", "Opener"]

_CHANNEL_OPTIONS: list[tuple[str, int | str]] = [
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # Etcd drops clients that ping more often than every five seconds.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
]
_REQUIRE_LEADER = ("hasleader", "true")
"""A member without a leader then refuses requests instead of answering with stale data or not at all."""

Metadata = tuple[tuple[str, str], ...]
"""gRPC metadata of a request."""


class Connection:
    """A channel to one verified endpoint."""

    def __init__(self, endpoint: str, channel: Any) -> None:
        self.endpoint = endpoint
        self.channel = channel
        self.auth = rpc.AuthStub(channel)
        self.cluster = rpc.ClusterStub(channel)
        self.kv = rpc.KVStub(channel)
        self.lease = rpc.LeaseStub(channel)
        self.maintenance = rpc.MaintenanceStub(channel)
        self.watch = rpc.WatchStub(channel)
        self.cluster_id = 0
        self.version = (0, 0, 0)

    def alive(self) -> bool:
        """Whether the channel is connected; otherwise a request would first reconnect."""
        return bool(self.channel.get_state() is grpc.ChannelConnectivity.READY)

    async def until_lost(self) -> None:
        """Wait until the peer is gone or has announced its shutdown."""
        await self.channel.wait_for_state_change(grpc.ChannelConnectivity.READY)

    async def close(self, *, grace: float | None = None) -> None:
        """Close the channel; requests in flight have `grace` seconds to finish."""
        await self.channel.close(grace)


class Opener:
    """Opens connections with the settings' credentials, trying the endpoints in turn, all of one cluster."""

    def __init__(self, settings: EtcdSettings) -> None:
        self._settings = settings
        self._token = ""
        self._cluster_id = 0
        self._failures: dict[str, str] = {}
        self._turn = 0

    @property
    def metadata(self) -> Metadata:
        """The metadata of every request."""
        return (_REQUIRE_LEADER, ("token", self._token)) if self._token else (_REQUIRE_LEADER,)

    async def open(self) -> Connection:
        """Return a connection to the next endpoint that answers; retry without a time limit."""
        backoff = Backoff()
        for attempt in itertools.count(1):
            endpoint = self._settings.endpoints[self._turn]
            try:
                return await self._open(endpoint)
            except rpc.AioRpcError as error:
                self.failed(endpoint, reason(error))
            if attempt % len(self._settings.endpoints) == 0:
                await backoff.wait()
        raise AssertionError("unreachable")

    def failed(self, endpoint: str, why: str) -> None:
        """Record a failure and switch to the next endpoint, unless another task already did."""
        self._failures[endpoint] = why
        if endpoint == self._settings.endpoints[self._turn]:
            self._turn = (self._turn + 1) % len(self._settings.endpoints)

    def forget_token(self, endpoint: str, *, refused: Metadata) -> None:
        """Make the next connection log in again, unless one did since `refused` was sent."""
        if not self._settings.user:
            raise AuthenticationError(
                f"etcd at {endpoint} requires a user and a password, but none are configured; set user and password"
            )
        if refused == self.metadata:
            self._token = ""

    def forget_cluster(self) -> None:
        """Accept the cluster that answers next."""
        self._cluster_id = 0

    def unreachable(self, why: str = "") -> UnreachableError:
        """Return an error that names each endpoint, its failure, and what to check."""
        tried = "; ".join(
            f"{endpoint} ({self._failures.get(endpoint, 'no answer')})" for endpoint in self._settings.endpoints
        )
        checks = "check that etcd runs and that endpoints, firewalls and TLS settings are right"
        return UnreachableError(f"etcd does not answer: tried {tried}; {why or checks}")

    async def _open(self, endpoint: str) -> Connection:
        connection = Connection(endpoint, self._channel(endpoint))
        try:
            await self._prove(connection)
        except rpc.AioRpcError as error:
            await connection.close()
            if refuses_certificate(error):
                raise AuthenticationError(
                    f"etcd at {endpoint} closed the TLS session: the client certificate is missing or not trusted; "
                    "check cert and key"
                ) from error
            if not is_transient(error):
                raise translate(error) from error
            raise
        except BaseException:
            await connection.close()
            raise
        return connection

    async def _prove(self, connection: Connection) -> None:
        """Check that the endpoint is alive, accepts the credentials, has a leader and belongs to the known cluster."""
        await self._log_in(connection)
        metadata = self.metadata
        try:
            status = await self._status(connection)
        except rpc.AioRpcError as error:
            if not is_stale_token(error):
                raise
            self.forget_token(connection.endpoint, refused=metadata)
            await self._log_in(connection)
            status = await self._status(connection)
        self._check_cluster(connection.endpoint, status.header.cluster_id)
        connection.cluster_id = status.header.cluster_id
        connection.version = _parse_version(status.version)

    async def _status(self, connection: Connection) -> Any:
        return await connection.maintenance.Status(
            rpc.StatusRequest(), timeout=self._settings.connect_timeout, metadata=self.metadata
        )

    async def _log_in(self, connection: Connection) -> None:
        if self._token or not self._settings.user:
            return
        request = rpc.AuthenticateRequest(name=self._settings.user, password=self._settings.password)
        try:
            answer = await connection.auth.Authenticate(request, timeout=self._settings.connect_timeout)
        except rpc.AioRpcError as error:
            # Credentials are harmless if authentication is not enabled, and needed once it is.
            if "authentication is not enabled" not in (error.details() or ""):
                raise
        else:
            self._token = answer.token

    def _check_cluster(self, endpoint: str, cluster_id: int) -> None:
        self._cluster_id = self._cluster_id or cluster_id
        if cluster_id != self._cluster_id:
            raise ClusterMismatchError(
                f"etcd at {endpoint} belongs to cluster {cluster_id:x} instead of {self._cluster_id:x}: its data was "
                "replaced, or the endpoint is wrong; check which, then restart"
            )

    def _channel(self, endpoint: str) -> Any:
        scheme, _, address = endpoint.partition("://")
        options = list(_CHANNEL_OPTIONS)
        if scheme == "http":
            return rpc.insecure_channel(address, options=options)
        if self._settings.server_name:
            options.append(("grpc.ssl_target_name_override", self._settings.server_name))
        return rpc.secure_channel(address, self._credentials(), options=options)

    def _credentials(self) -> Any:
        """Read the TLS files for each connection, so that renewed certificates take effect."""
        files = (self._settings.ca, self._settings.key, self._settings.cert)
        try:
            ca, key, cert = (file.read_bytes() if file else None for file in files)
        except OSError as error:
            raise AuthenticationError(
                f"etcd TLS: cannot read {error.filename}: {error.strerror}; check ca, cert and key"
            ) from error
        return grpc.ssl_channel_credentials(ca, key, cert)


def _parse_version(text: str) -> tuple[int, int, int]:
    major, minor, patch = text.partition("-")[0].split(".")[:3]
    return int(major), int(minor), int(patch)
