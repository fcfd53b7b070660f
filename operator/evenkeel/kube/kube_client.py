"""Requests to the API server, one by one: plain data in, plain data out.

`kubernetes.aio` knows how to find the API server and to prove who we are; its typed models are passed by, because
server-side apply wants exactly the fields that were set.
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
"""Whose fields they are that we apply; never changes, or old fields would stay for ever."""

_SECONDS: Final = 15.0
_PAGE: Final = 500
_JSON: Final = "application/json"
_APPLY: Final = "application/apply-patch+yaml"
_MERGE: Final = "application/merge-patch+json"
_JSON_PATCH: Final = "application/json-patch+json"
_INVALID: Final = 422
_TOO_MANY: Final = 429
_ERRORS: Final = {403: ApiForbiddenError, 404: ApiNotFoundError, 409: ApiConflictError}

Counted = Callable[[str, Kind, int], None]
Socket = aiohttp.ClientWebSocketResponse


class Answer(NamedTuple):
    """What the API server said."""

    status: int
    body: Object


class Listing(NamedTuple):
    """All objects of a kind at one moment."""

    items: list[Object]
    version: int
    """The resource version of that moment."""


def _uncounted(verb: str, kind: Kind, status: int) -> None: ...


class Kube:
    """One API server."""

    def __init__(
        self, configuration: Configuration, *, manager: str = FIELD_MANAGER, counted: Counted = _uncounted
    ) -> None:
        """`counted` is told of every request: its verb, its kind, and the answer's status, 0 where there was none."""
        self._client = ApiClient(configuration)
        self._client.rest_client = Rest(configuration)
        self._client.user_agent = manager
        self._manager = manager
        self._counted = counted

    async def close(self) -> None:
        """Hang up."""
        await self._client.close()  # type: ignore[no-untyped-call]

    # Reading

    async def get(self, kind: Kind, name: str, namespace: str = "") -> Object | None:
        """One object, or None."""
        try:
            return (await self._send("GET", kind, kind.path(namespace, name))).body
        except ApiNotFoundError:
            return None

    async def list(self, kind: Kind, namespace: str = "", *, selector: str = "") -> Listing:
        """All objects of a kind, of one namespace or of all."""
        query = {"limit": str(_PAGE)} | ({"labelSelector": selector} if selector else {})
        items: list[Object] = []
        while True:
            page = (await self._send("GET", kind, kind.path(namespace), query=query)).body
            # Items of a list do not say what they are.
            items += ({"apiVersion": kind.api_version, "kind": kind.name, **item} for item in page["items"])
            query["continue"] = page["metadata"].get("continue", "")
            if not query["continue"]:
                return Listing(items, int(page["metadata"]["resourceVersion"]))

    # Writing

    async def create(self, subject: Object) -> Object:
        """Make an object; ApiConflictError where there is one of its name."""
        kind = kind_of(subject)
        return (await self._send("POST", kind, kind.path(_namespace(subject)), body=subject)).body

    async def replace(self, subject: Object) -> Object:
        """Put an object in the place of one with the same resourceVersion; ApiConflictError where that is gone."""
        kind = kind_of(subject)
        path = kind.path(_namespace(subject), subject["metadata"]["name"])
        return (await self._send("PUT", kind, path, body=subject)).body

    async def apply(self, subject: Object, *, force: bool = False) -> Answer:
        """Make the fields of an object what is wanted, and remove those that we wanted before.

        ApiConflictError where somebody else has set one of them, unless that is overruled.
        """
        kind = kind_of(subject)
        path = kind.path(_namespace(subject), subject["metadata"]["name"])
        query = {"fieldManager": self._manager, "force": "true" if force else ""}
        return await self._send("PATCH", kind, path, query=query, body=subject, content=_APPLY)

    async def merge(self, kind: Kind, name: str, namespace: str, patch: Mapping[str, Any]) -> Object:
        """Lay a patch over an object; with a resourceVersion in it, only over that version."""
        path, query = kind.path(namespace, name), {"fieldManager": self._manager}
        return (await self._send("PATCH", kind, path, query=query, body=dict(patch), content=_MERGE)).body

    async def set_status(self, kind: Kind, name: str, namespace: str, *, uid: str, status: Object) -> Object | None:
        """Put a status in place of what there is; None where the object is gone, or is another of that name."""
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
        """Begin to delete an object, in the background; whether there was one. `grace` is in seconds."""
        query = {"propagationPolicy": "Background"} | ({"gracePeriodSeconds": str(grace)} if grace is not None else {})
        try:
            await self._send("DELETE", kind, kind.path(namespace, name), query=query)
        except ApiNotFoundError:
            return False
        return True

    async def delete_exactly(self, subject: Object) -> bool:
        """Begin to delete an object only if it is still exactly this one; False where it is gone or has changed."""
        kind, metadata = kind_of(subject), subject["metadata"]
        preconditions = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
        options = {"propagationPolicy": "Background", "preconditions": preconditions}
        try:
            await self._send("DELETE", kind, kind.path(_namespace(subject), metadata["name"]), body=options)
        except (ApiNotFoundError, ApiConflictError):
            return False
        return True

    async def patch(self, subject: Object, *operations: Object) -> Object:
        """Apply JSON patch operations to exactly this version of an object; ApiConflictError where it has changed."""
        kind, metadata = kind_of(subject), subject["metadata"]
        version = {"op": "test", "path": "/metadata/resourceVersion", "value": metadata["resourceVersion"]}
        path, query = kind.path(_namespace(subject), metadata["name"]), {"fieldManager": self._manager}
        body = [version, *operations]
        return (await self._send("PATCH", kind, path, query=query, body=body, content=_JSON_PATCH)).body

    async def evict(self, pod: Object) -> bool:
        """Have a pod end, and no successor of its name, if its budget allows that now; whether it does, or is gone."""
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
        """A connection that stays; the same errors as with requests."""
        asked = await self._client.param_serialize(
            "GET", path, query_params=list(query.items()), auth_settings=["BearerToken"]
        )
        _, url, headers, *_ = asked
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
                self._counted("GET", kind, error.status)
                raise _ERRORS.get(error.status, KubernetesError)(
                    f"GET {path}: {error.message or 'refused'} (HTTP {error.status})", status=error.status
                ) from error
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                self._counted("GET", kind, 0)
                raise ApiUnreachableError(f"the API server does not answer: GET {path}: {error}") from error
            self._counted("GET", kind, 101)
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
        asked = await self._client.param_serialize(
            verb,
            path,
            query_params=[(name, value) for name, value in (query or {}).items() if value],
            header_params={"Accept": _JSON, "Content-Type": content},
            body=body,
            auth_settings=["BearerToken"],
        )
        status = 0
        try:
            answer = await self._client.call_api(*asked, _request_timeout=_SECONDS)
            status, text = answer.status, await answer.read()  # type: ignore[no-untyped-call]
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ApiUnreachableError(
                f"the API server does not answer: {verb} {path}: {error or 'too late'}"
            ) from error
        finally:
            self._counted(verb, kind, status)
        if status == _INVALID and content == _JSON_PATCH and _failed_test(text):
            raise ApiConflictError(f"{verb} {path}: the object has changed", status=status)
        if status >= 300:
            raise _ERRORS.get(status, KubernetesError)(f"{verb} {path}: {_words(text)}", status=status)
        return Answer(status, msgspec.json.decode(text) if text else {})


def _namespace(subject: Object) -> str:
    return str(subject["metadata"].get("namespace", ""))


def _failed_test(text: bytes) -> bool:
    """Whether a JSON patch was refused because one of its `test` operations failed.

    The API server answers 422 for that and for an invalid object alike. Only the latter has causes, one per field.
    """
    try:
        return "causes" not in msgspec.json.decode(text).get("details", {})
    except (msgspec.DecodeError, AttributeError, TypeError):
        return False


def _words(text: bytes) -> str:
    """What the API server gave as its reason."""
    try:
        return str(msgspec.json.decode(text)["message"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return text[:200].decode(errors="replace")
