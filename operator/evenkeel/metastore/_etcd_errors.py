"""Classify etcd's errors into retryable and permanent ones, and translate them.

The most important rule is `certainly_not_applied`. A write whose response was lost may have taken effect, and sending
it again could overwrite later changes. So a write is retried only if etcd reports that it dropped the request.
"""

from __future__ import annotations

from typing import Any

from aetcd import rpc

from evenkeel.errors import (
    AuthenticationError,
    CompactedError,
    LeaseNotFoundError,
    MetastoreError,
    NoSpaceError,
    RefusedError,
)

__all__ = [
    "NO_SPACE",
    "certainly_not_applied",
    "is_stale_token",
    "is_transient",
    "reason",
    "refuses_certificate",
    "translate",
]

NO_SPACE = (
    "etcd has used up its space quota and refuses writes (alarm NOSPACE); reads still work. Free space: `etcdctl "
    "compact REVISION`, `etcdctl defrag --cluster`, `etcdctl alarm disarm`; if it fills up again, raise its quota"
)
_TRANSIENT = {
    rpc.StatusCode.UNAVAILABLE,
    rpc.StatusCode.DEADLINE_EXCEEDED,
    rpc.StatusCode.CANCELLED,
    rpc.StatusCode.INTERNAL,
    rpc.StatusCode.UNKNOWN,
}
# "unhealthy cluster": etcd still counts a member that just died as connected, so no member may be removed yet.
_DROPPED = (
    "etcdserver: no leader",
    "etcdserver: too many requests",
    "etcdserver: unhealthy cluster",
    "raft proposal dropped",
)
_STALE_TOKEN = ("invalid auth token", "revision of auth store is old", "user name is empty")
_AUTHENTICATION = {rpc.StatusCode.UNAUTHENTICATED, rpc.StatusCode.PERMISSION_DENIED}
_AUTHENTICATION_DETAILS = ("authentication failed", "user name is empty", "invalid auth token")
_CERTIFICATE_REFUSED = ("TSI_DATA_CORRUPTED", "ALERT_BAD_CERTIFICATE", "ALERT_UNKNOWN_CA", "ALERT_CERTIFICATE")


def is_transient(error: Any) -> bool:
    """Whether another attempt, possibly at another endpoint, may succeed."""
    return error.code() in _TRANSIENT or certainly_not_applied(error)


def certainly_not_applied(error: Any) -> bool:
    """Whether etcd reports that it dropped the request before it took effect."""
    return any(text in (error.details() or "") for text in (*_DROPPED, *_STALE_TOKEN))


def is_stale_token(error: Any) -> bool:
    """Whether the access token is stale and the client must log in again."""
    return any(text in (error.details() or "") for text in _STALE_TOKEN)


def refuses_certificate(error: Any) -> bool:
    """Whether the server refused the client certificate, or its absence.

    In TLS 1.3 the server reports it only after the handshake, by an alert that gRPC reports as corrupted data.
    """
    return any(text in (error.details() or "") for text in _CERTIFICATE_REFUSED)


def reason(error: Any) -> str:
    """Return the relevant part of gRPC's long error details."""
    details = (error.details() or error.code().name).strip()
    return str(details.rpartition("last error: ")[2])


def translate(error: Any) -> MetastoreError:
    """Return the error to raise for a permanent failure."""
    details = error.details() or ""
    if error.code() in _AUTHENTICATION or any(text in details for text in _AUTHENTICATION_DETAILS):
        return AuthenticationError(f"etcd refuses access: {details}; check user, password and the user's roles")
    if "revision has been compacted" in details:
        return CompactedError(f"etcd: {details}", first_revision=0)
    if "lease not found" in details:
        return LeaseNotFoundError("the lease does not exist: it expired or was revoked; grant a new one")
    if error.code() in (rpc.StatusCode.INVALID_ARGUMENT, rpc.StatusCode.OUT_OF_RANGE):
        return RefusedError(f"etcd refuses the request: {details}")
    if "database space exceeded" in details:
        return NoSpaceError(NO_SPACE)
    return MetastoreError(f"etcd: {error.code().name}: {details}")
