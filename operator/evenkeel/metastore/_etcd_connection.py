"""Connections to etcd: which endpoint to talk to, and how it proves that it is alive and ours.

aetcd's own client knows one endpoint, no TLS and no expiring tokens, so this module opens the channels itself and
uses aetcd for what it does well, the generated messages and stubs.

A `Connection` exists only after its endpoint has answered a status request and named its cluster, so a request is
sent only where somebody listens, and two clusters are never taken for one.
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
"""A member cut off from the others then refuses, instead of answering from the past or not at all."""

Metadata = tuple[tuple[str, str], ...]
"""What goes with a request beside its message."""


class Connection:
    """A channel to one endpoint that has proved to be alive."""

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
        """Whether a request would go out at once; a channel that lost its peer would dial anew instead."""
        return bool(self.channel.get_state() is grpc.ChannelConnectivity.READY)

    async def until_lost(self) -> None:
        """Wait until the peer is gone or has said that it is going."""
        await self.channel.wait_for_state_change(grpc.ChannelConnectivity.READY)

    async def close(self, *, grace: float | None = None) -> None:
        """Close it, leaving what is under way `grace` seconds to finish."""
        await self.channel.close(grace)


class Opener:
    """Opens connections with the settings' credentials, one endpoint after the other, all of one cluster."""

    def __init__(self, settings: EtcdSettings) -> None:
        self._settings = settings
        self._token = ""
        self._cluster_id = 0
        self._failures: dict[str, str] = {}
        self._turn = 0

    @property
    def metadata(self) -> Metadata:
        """What every request carries."""
        return (_REQUIRE_LEADER, ("token", self._token)) if self._token else (_REQUIRE_LEADER,)

    async def open(self) -> Connection:
        """A connection to the next endpoint that answers, however long that takes."""
        backoff = Backoff()
        for attempt in itertools.count(1):
            endpoint = self._settings.endpoints[self._turn]
            try:
                return await self._open(endpoint)
            except rpc.AioRpcError as error:
                self.failed(endpoint, reason(error))
            if attempt % len(self._settings.endpoints) == 0:
                await backoff.wait()
        raise AssertionError("counting never ends")

    def failed(self, endpoint: str, why: str) -> None:
        """Note a failure and turn to the next endpoint, unless somebody already did."""
        self._failures[endpoint] = why
        if endpoint == self._settings.endpoints[self._turn]:
            self._turn = (self._turn + 1) % len(self._settings.endpoints)

    def forget_token(self, endpoint: str, *, refused: Metadata) -> None:
        """Have the next connection log in again, unless that has happened since `refused` was sent."""
        if not self._settings.user:
            raise AuthenticationError(f"etcd at {endpoint} asks for a user and a password, and none are configured")
        if refused == self.metadata:
            self._token = ""

    def forget_cluster(self) -> None:
        """Take the cluster that answers next for the one to work with."""
        self._cluster_id = 0

    def unreachable(self, why: str = "") -> UnreachableError:
        """The error that names each endpoint, what it failed with, and what to check."""
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
                    f"etcd at {endpoint} ends the TLS session, as it does with clients that show no certificate "
                    "or one it does not trust: check cert and key"
                ) from error
            if not is_transient(error):
                raise translate(error) from error
            raise
        except BaseException:
            await connection.close()
            raise
        return connection

    async def _prove(self, connection: Connection) -> None:
        """See that the endpoint is alive, lets us in, has a leader and belongs to the cluster we know."""
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
            # Credentials are harmless where etcd does not ask for any, and needed once it does.
            if "authentication is not enabled" not in (error.details() or ""):
                raise
        else:
            self._token = answer.token

    def _check_cluster(self, endpoint: str, cluster_id: int) -> None:
        self._cluster_id = self._cluster_id or cluster_id
        if cluster_id != self._cluster_id:
            raise ClusterMismatchError(
                f"etcd at {endpoint} belongs to cluster {cluster_id:x}, but we worked with {self._cluster_id:x}: "
                "its data was replaced, or the endpoint is wrong; restart only after making sure which is right"
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
        """Read anew for each connection, so that renewed certificates are taken up."""
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
