"""Requests to the API server, with objects as plain data.

`kubernetes.aio` provides configuration and authentication. Its typed models are not used, because server-side apply
needs exactly the fields that were set.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple

import aiohttp
import msgspec
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration

from evenkeel.errors import (
    ApiConflictError,
    ApiForbiddenError,
    ApiNotFoundError,
    ApiUnreachableError,
    KubernetesError,
)
from evenkeel.kube.api_connections import Rest, connected
from evenkeel.kube.object_kinds import Kind, Object, kind_of

__all__ = ["FIELD_MANAGER", "Answer", "Kube", "Listing", "Socket"]

FIELD_MANAGER: Final = "evenkeel-operator"
"""The field manager of applied fields. It must never change, or fields of the old manager would stay."""

_TIMEOUT: Final = 15.0
_PAGE: Final = 500
_JSON: Final = "application/json"
_APPLY: Final = "application/apply-patch+yaml"
_MERGE: Final = "application/merge-patch+json"
_JSON_PATCH: Final = "application/json-patch+json"
_INVALID: Final = 422
_TOO_MANY: Final = 429
_ERRORS: Final = {403: ApiForbiddenError, 404: ApiNotFoundError, 409: ApiConflictError}

OnRequest = Callable[[str, Kind, int], None]
Socket = aiohttp.ClientWebSocketResponse


class Answer(NamedTuple):
    """A response of the API server."""

    status: int
    body: Object


class Listing(NamedTuple):
    """All objects of a kind at one resource version."""

    items: list[Object]
    version: int
    """The resource version of the list."""


def _ignore(verb: str, kind: Kind, status: int) -> None: ...


class Kube:
    """A client of one API server."""

    def __init__(
        self, configuration: Configuration, *, manager: str = FIELD_MANAGER, on_request: OnRequest = _ignore
    ) -> None:
        """`on_request` is called for every request with its verb, its kind and the status, 0 without a response."""
        self._client = ApiClient(configuration)
        self._client.rest_client = Rest(configuration)
        self._client.user_agent = manager
        self._manager = manager
        self._on_request = on_request

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()  # type: ignore[no-untyped-call]

    # Reading

    async def get(self, kind: Kind, name: str, namespace: str = "") -> Object | None:
        """Return an object, or None."""
        try:
            return (await self._send("GET", kind, kind.path(namespace, name))).body
        except ApiNotFoundError:
            return None

    async def list(self, kind: Kind, namespace: str = "", *, selector: str = "") -> Listing:
        """Return all objects of a kind in one namespace, or in all."""
        query = {"limit": str(_PAGE)} | ({"labelSelector": selector} if selector else {})
        items: list[Object] = []
        while True:
            page = (await self._send("GET", kind, kind.path(namespace), query=query)).body
            # Items of a list have no apiVersion and kind.
            items += ({"apiVersion": kind.api_version, "kind": kind.name, **item} for item in page["items"])
            query["continue"] = page["metadata"].get("continue", "")
            if not query["continue"]:
                return Listing(items, int(page["metadata"]["resourceVersion"]))

    # Writing

    async def create(self, subject: Object) -> Object:
        """Create an object; raise ApiConflictError if it exists."""
        kind = kind_of(subject)
        return (await self._send("POST", kind, kind.path(_namespace(subject)), body=subject)).body

    async def replace(self, subject: Object) -> Object:
        """Replace an object; raise ApiConflictError if its resourceVersion has changed."""
        kind = kind_of(subject)
        path = kind.path(_namespace(subject), subject["metadata"]["name"])
        return (await self._send("PUT", kind, path, body=subject)).body

    async def apply(self, subject: Object, *, force: bool = False) -> Answer:
        """Server-side apply: set the given fields and remove those that were applied before and are not given.

        Raises ApiConflictError if another manager owns one of the fields, unless `force` is set.
        """
        kind = kind_of(subject)
        path = kind.path(_namespace(subject), subject["metadata"]["name"])
        query = {"fieldManager": self._manager, "force": "true" if force else ""}
        return await self._send("PATCH", kind, path, query=query, body=subject, content=_APPLY)

    async def merge(self, kind: Kind, name: str, namespace: str, patch: Mapping[str, Any]) -> Object:
        """Apply a JSON merge patch; if it has a resourceVersion, only to that version."""
        path, query = kind.path(namespace, name), {"fieldManager": self._manager}
        return (await self._send("PATCH", kind, path, query=query, body=dict(patch), content=_MERGE)).body

    async def set_status(self, kind: Kind, name: str, namespace: str, *, uid: str, status: Object) -> Object | None:
        """Replace the status of an object; return None if the object is gone or has another uid."""
        patch: list[Object] = [
            {"op": "test", "path": "/metadata/uid", "value": uid},
            {"op": "add", "path": "/status", "value": status},
        ]
        path, query = kind.path(namespace, name, "status"), {"fieldManager": self._manager}
        try:
            return (await self._send("PATCH", kind, path, query=query, body=patch, content=_JSON_PATCH)).body
        except (ApiNotFoundError, ApiConflictError):
            return None

    async def delete(self, kind: Kind, name: str, namespace: str = "", *, grace: int | None = None) -> bool:
        """Start to delete an object; return whether it existed. `grace` is in seconds."""
        query = {"propagationPolicy": "Background"} | ({"gracePeriodSeconds": str(grace)} if grace is not None else {})
        try:
            await self._send("DELETE", kind, kind.path(namespace, name), query=query)
        except ApiNotFoundError:
            return False
        return True

    async def delete_exactly(self, subject: Object) -> bool:
        """Start to delete exactly this version of an object; return False if it is gone or has changed."""
        kind, metadata = kind_of(subject), subject["metadata"]
        preconditions = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
        options = {"propagationPolicy": "Background", "preconditions": preconditions}
        try:
            await self._send("DELETE", kind, kind.path(_namespace(subject), metadata["name"]), body=options)
        except (ApiNotFoundError, ApiConflictError):
            return False
        return True

    async def patch(self, subject: Object, *operations: Object) -> Object:
        """Apply JSON patch operations to exactly this version of an object; raise ApiConflictError if it changed."""
        kind, metadata = kind_of(subject), subject["metadata"]
        version = {"op": "test", "path": "/metadata/resourceVersion", "value": metadata["resourceVersion"]}
        path, query = kind.path(_namespace(subject), metadata["name"]), {"fieldManager": self._manager}
        body = [version, *operations]
        return (await self._send("PATCH", kind, path, query=query, body=body, content=_JSON_PATCH)).body

    async def evict(self, pod: Object) -> bool:
        """Evict exactly this pod; return False if its disruption budget does not allow that now."""
        name, namespace, kind = pod["metadata"]["name"], _namespace(pod), kind_of(pod)
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": {"preconditions": {"uid": pod["metadata"]["uid"]}},
        }
        try:
            await self._send("POST", kind, kind.path(namespace, name, "eviction"), body=eviction)
        except (ApiNotFoundError, ApiConflictError):
            return True
        except KubernetesError as error:
            if error.status == _TOO_MANY:
                return False
            raise
        return True

    # Streams

    @asynccontextmanager
    async def websocket(
        self, kind: Kind, path: str, *, query: Mapping[str, str], protocol: str
    ) -> AsyncIterator[Socket]:
        """Open a WebSocket; raises the same errors as requests."""
        request = await self._client.param_serialize(
            "GET", path, query_params=list(query.items()), auth_settings=["BearerToken"]
        )
        _, url, headers, *_ = request
        configuration, rest = self._client.configuration, self._client.rest_client
        options: dict[str, Any] = {"proxy": configuration.proxy, "server_hostname": configuration.tls_server_name}
        async with connected(ssl=rest.ssl_context) as session:
            try:
                socket = await session.ws_connect(
                    url,
                    headers=headers,
                    protocols=[protocol],
                    max_msg_size=0,
                    **{name: value for name, value in options.items() if value},
                )
            except aiohttp.WSServerHandshakeError as error:
                self._on_request("GET", kind, error.status)
                raise _ERRORS.get(error.status, KubernetesError)(
                    f"GET {path}: {error.message or 'rejected'} (HTTP {error.status})", status=error.status
                ) from error
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                self._on_request("GET", kind, 0)
                raise ApiUnreachableError(f"the API server does not answer: GET {path}: {error}") from error
            self._on_request("GET", kind, 101)
            async with socket:
                yield socket

    async def _send(
        self,
        verb: str,
        kind: Kind,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Object | Sequence[Object] | None = None,
        content: str = _JSON,
    ) -> Answer:
        request = await self._client.param_serialize(
            verb,
            path,
            query_params=[(name, value) for name, value in (query or {}).items() if value],
            header_params={"Accept": _JSON, "Content-Type": content},
            body=body,
            auth_settings=["BearerToken"],
        )
        status = 0
        try:
            response = await self._client.call_api(*request, _request_timeout=_TIMEOUT)
            status, text = response.status, await response.read()  # type: ignore[no-untyped-call]
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ApiUnreachableError(f"the API server does not answer: {verb} {path}: {error or 'timeout'}") from error
        finally:
            self._on_request(verb, kind, status)
        if status == _INVALID and content == _JSON_PATCH and _failed_test(text):
            raise ApiConflictError(f"{verb} {path}: the object has changed", status=status)
        if status >= 300:
            raise _ERRORS.get(status, KubernetesError)(f"{verb} {path}: {_reason(text)}", status=status)
        return Answer(status, msgspec.json.decode(text) if text else {})


def _namespace(subject: Object) -> str:
    return str(subject["metadata"].get("namespace", ""))


def _failed_test(text: bytes) -> bool:
    """Whether a JSON patch was rejected because one of its `test` operations failed.

    The API server returns 422 both for that and for an invalid object. Only the latter has causes, one per field.
    """
    try:
        return "causes" not in msgspec.json.decode(text).get("details", {})
    except (msgspec.DecodeError, AttributeError, TypeError):
        return False


def _reason(text: bytes) -> str:
    """Return the message of an error response."""
    try:
        return str(msgspec.json.decode(text)["message"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return text[:200].decode(errors="replace")
