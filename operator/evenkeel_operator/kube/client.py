"""Requests to the API server, one by one: plain data in, plain data out.

`kubernetes.aio` knows how to find the API server and to prove who we are; its typed models are passed by, because
server-side apply wants exactly the fields that were set.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import aiohttp
import msgspec
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config

from evenkeel.errors import (
    ApiConflictError,
    ApiForbiddenError,
    ApiNotFoundError,
    ApiUnreachableError,
    InvalidInputError,
    KubernetesError,
)
from evenkeel_operator.kube.kinds import Kind, Object, kind_of

__all__ = ["CLOSING_SECONDS", "FIELD_MANAGER", "Answer", "Kube", "Listing", "load_configuration"]

FIELD_MANAGER: Final = "evenkeel-operator"
"""Whose fields they are that we apply; never changes, or old fields would stay for ever."""

CLOSING_SECONDS: Final = 0.25
"""What TLS connections take to close; aiohttp does not wait for them (its documentation, "Graceful shutdown")."""
_SECONDS: Final = 15.0
_PAGE: Final = 500
_JSON: Final = "application/json"
_APPLY: Final = "application/apply-patch+yaml"
_MERGE: Final = "application/merge-patch+json"
_JSON_PATCH: Final = "application/json-patch+json"
_ERRORS: Final = {403: ApiForbiddenError, 404: ApiNotFoundError, 409: ApiConflictError}

Counted = Callable[[str, Kind, int], None]


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


async def load_configuration(kubeconfig: Path | None) -> Configuration:
    """How to reach the API server: by a kubeconfig, or as a pod does."""
    configuration = Configuration()
    try:
        if kubeconfig is None:
            load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        else:
            await load_kube_config(  # type: ignore[no-untyped-call]
                config_file=str(kubeconfig), client_configuration=configuration
            )
    except (ConfigException, OSError) as error:
        where = f"--kubeconfig {kubeconfig}" if kubeconfig else "this is no pod of Kubernetes; give --kubeconfig"
        raise InvalidInputError(f"the API server cannot be found: {where}: {error}") from error
    return configuration


class Kube:
    """One API server."""

    def __init__(self, configuration: Configuration, *, counted: Counted = _uncounted) -> None:
        """`counted` is told of every request: its verb, its kind, and the answer's status, 0 where there was none."""
        self._client = ApiClient(configuration)
        self._client.user_agent = FIELD_MANAGER
        self._counted = counted

    async def close(self) -> None:
        """Hang up."""
        await self._client.close()  # type: ignore[no-untyped-call]
        await asyncio.sleep(CLOSING_SECONDS)

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
        query = {"fieldManager": FIELD_MANAGER, "force": "true" if force else ""}
        return await self._send("PATCH", kind, path, query=query, body=subject, content=_APPLY)

    async def merge(self, kind: Kind, name: str, namespace: str, patch: Mapping[str, Any]) -> Object:
        """Lay a patch over an object; with a resourceVersion in it, only over that version."""
        path, query = kind.path(namespace, name), {"fieldManager": FIELD_MANAGER}
        return (await self._send("PATCH", kind, path, query=query, body=dict(patch), content=_MERGE)).body

    async def set_status(self, kind: Kind, name: str, namespace: str, *, uid: str, status: Object) -> Object | None:
        """Put a status in place of what there is; None where the object is gone, or is another of that name."""
        patch: list[Object] = [
            {"op": "test", "path": "/metadata/uid", "value": uid},
            {"op": "add", "path": "/status", "value": status},
        ]
        path, query = kind.path(namespace, name, "status"), {"fieldManager": FIELD_MANAGER}
        try:
            return (await self._send("PATCH", kind, path, query=query, body=patch, content=_JSON_PATCH)).body
        except ApiNotFoundError:
            return None
        except KubernetesError as error:
            if error.status == 422 and "test" in str(error):
                return None
            raise

    async def delete(self, kind: Kind, name: str, namespace: str = "", *, grace: int | None = None) -> bool:
        """Begin to delete an object, in the background; whether there was one. `grace` is in seconds."""
        query = {"propagationPolicy": "Background"} | ({"gracePeriodSeconds": str(grace)} if grace is not None else {})
        try:
            await self._send("DELETE", kind, kind.path(namespace, name), query=query)
        except ApiNotFoundError:
            return False
        return True

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
        if status >= 300:
            raise _ERRORS.get(status, KubernetesError)(f"{verb} {path}: {_words(text)}", status=status)
        return Answer(status, msgspec.json.decode(text) if text else {})


def _namespace(subject: Object) -> str:
    return str(subject["metadata"].get("namespace", ""))


def _words(text: bytes) -> str:
    """What the API server gave as its reason."""
    try:
        return str(msgspec.json.decode(text)["message"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return text[:200].decode(errors="replace")
