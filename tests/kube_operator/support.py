"""Resources for manifests, and an API server in memory."""

from __future__ import annotations

import asyncio
import copy
import itertools
from typing import Any

from evenkeel.errors import ApiConflictError, ApiNotFoundError, ApiUnreachableError
from evenkeel.kube.kube_client import Answer
from evenkeel.kube.object_kinds import Kind, Object, kind_of
from evenkeel.model.resource_loading import parse
from evenkeel.model.storecluster import StoreCluster


def store_cluster(name: str = "main", *, uid: str = "u1", **spec: Any) -> StoreCluster:
    document = {
        "apiVersion": "evenkeel.dev/v1alpha1",
        "kind": "StoreCluster",
        "metadata": {"name": name, "namespace": "shop", "uid": uid, "generation": 1},
        "spec": {"stores": 3, "storage": {"size": "10Gi"}, **spec},
    }
    found = parse(document)
    assert isinstance(found, StoreCluster)
    return found


class FakeKube:
    """An API server in memory; it can be unreachable, or delay its answers."""

    def __init__(self) -> None:
        self.objects: dict[tuple[Kind, str, str], Object] = {}
        self.away = False
        self.answers = asyncio.Event()
        self.answers.set()
        self.calls: list[str] = []
        self._versions = itertools.count(1)

    async def get(self, kind: Kind, name: str, namespace: str = "") -> Object | None:
        await self._called(f"get {kind.name} {name}")
        return copy.deepcopy(self.objects.get((kind, namespace, name)))

    async def create(self, subject: Object) -> Object:
        await self._called(f"create {subject['kind']}")
        key = self._key(subject)
        if key in self.objects:
            raise ApiConflictError("there is one", status=409)
        return self._keep(key, {**subject, "metadata": {"uid": f"uid-{len(self.objects)}", **subject["metadata"]}})

    async def replace(self, subject: Object) -> Object:
        await self._called(f"replace {subject['kind']}")
        key = self._key(subject)
        live = self.objects.get(key)
        if live is None:
            raise ApiNotFoundError("there is none", status=404)
        if live["metadata"]["resourceVersion"] != subject["metadata"]["resourceVersion"]:
            raise ApiConflictError("it has changed", status=409)
        return self._keep(key, subject)

    async def apply(self, subject: Object, *, force: bool = False) -> Answer:
        await self._called(f"apply {subject['kind']}{' by force' if force else ''}")
        key = self._key(subject)
        live = self.objects.get(key)
        asked = subject["metadata"].get("uid")
        if asked is not None and (live is None or live["metadata"].get("uid") != asked):
            raise ApiConflictError("that is another object", status=409)
        if live is not None and live.get("theirs") and not force:
            raise ApiConflictError("somebody else has set a field", status=409)
        if live is not None and {k: v for k, v in live.items() if k != "metadata"} == {
            k: v for k, v in subject.items() if k != "metadata"
        }:
            return Answer(200, copy.deepcopy(live))
        if live is not None:
            subject = {**subject, "metadata": {**live["metadata"], **subject["metadata"]}}
        return Answer(201 if live is None else 200, self._keep(key, subject))

    async def merge(self, kind: Kind, name: str, namespace: str, patch: Object) -> Object:
        """Merge a patch of metadata; an object that is being deleted goes with its last finalizer."""
        await self._called(f"merge {kind.name} {name}")
        key = (kind, namespace, name)
        live = self.objects[key]
        if (
            patch["metadata"].get("resourceVersion", live["metadata"]["resourceVersion"])
            != live["metadata"]["resourceVersion"]
        ):
            raise ApiConflictError("it has changed", status=409)
        metadata = {**live["metadata"], **patch["metadata"]}
        if "annotations" in patch["metadata"]:
            merged = {**live["metadata"].get("annotations", {}), **patch["metadata"]["annotations"]}
            metadata["annotations"] = {name: value for name, value in merged.items() if value is not None}
        after = self._keep(key, {**live, "metadata": metadata})
        if "deletionTimestamp" in after["metadata"] and not after["metadata"].get("finalizers"):
            del self.objects[key]
        return after

    async def delete(self, kind: Kind, name: str, namespace: str = "", *, grace: int | None = None) -> bool:
        await self._called(f"delete {kind.name} {name}")
        return self.objects.pop((kind, namespace, name), None) is not None

    async def delete_exactly(self, subject: Object) -> bool:
        await self._called(f"delete {subject['kind']} {subject['metadata']['name']}")
        live, metadata = self.objects.get(self._key(subject)), subject["metadata"]
        same = live is not None and all(live["metadata"][name] == metadata[name] for name in ("uid", "resourceVersion"))
        if same:
            del self.objects[self._key(subject)]
        return same

    async def evict(self, pod: Object) -> bool:
        await self._called(f"evict {pod['metadata']['name']}")
        return True

    async def set_status(self, kind: Kind, name: str, namespace: str, *, uid: str, status: Object) -> Object | None:
        await self._called(f"status {kind.name} {name}")
        live = self.objects.get((kind, namespace, name))
        if live is None or live["metadata"]["uid"] != uid:
            return None
        return self._keep((kind, namespace, name), {**live, "status": status})

    def add_fields(self, kind: Kind, name: str, namespace: str = "shop", **fields: Any) -> str:
        """Change an object as another client does; return its version."""
        live = self.objects[kind, namespace, name]
        return str(self._keep((kind, namespace, name), {**live, **fields})["metadata"]["resourceVersion"])

    def skip_to(self, version: int) -> None:
        """Use only newer versions from now on."""
        self._versions = itertools.count(version + 1)

    def add(self, kind: Kind, name: str, namespace: str = "shop", **fields: Any) -> Object:
        metadata = {"name": name, "namespace": namespace, "uid": f"uid-{name}"}
        subject = {"apiVersion": kind.api_version, "kind": kind.name, "metadata": metadata, **fields}
        return self._keep((kind, namespace, name), subject)

    async def _called(self, what: str) -> None:
        self.calls.append(what)
        await asyncio.sleep(0)
        await self.answers.wait()
        if self.away:
            raise ApiUnreachableError("the API server does not answer")

    def _key(self, subject: Object) -> tuple[Kind, str, str]:
        return kind_of(subject), subject["metadata"].get("namespace", ""), subject["metadata"]["name"]

    def _keep(self, key: tuple[Kind, str, str], subject: Object) -> Object:
        kept = copy.deepcopy(subject)
        kept["metadata"]["resourceVersion"] = str(next(self._versions))
        self.objects[key] = kept
        return copy.deepcopy(kept)


async def turns(number: int = 50) -> None:
    """Let all tasks run until they wait."""
    for _ in range(number):
        await asyncio.sleep(0)
