"""The operator never changes, adopts or deletes an object that it does not own, on a real API server."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from evenkeel.errors import ApiConflictError
from evenkeel.kube.object_kinds import (
    LEASE,
    POD_DISRUPTION_BUDGET,
    SECRET,
    SERVICE,
    SERVICE_ACCOUNT,
    STATEFUL_SET,
    STORE_CLUSTER,
    Kind,
    Object,
)
from evenkeel.model.resource_loading import parse
from evenkeel.model.storecluster import StoreCluster
from evenkeel_operator.kube.object_applier import Applied, Applier
from evenkeel_operator.manifests import stateful_set
from evenkeel_operator.manifests.pod_settings import PodSettings
from tests.kubernetes.world import World, store_cluster

LABELS = {"app": "theirs"}
THEIR_PODS = {
    "metadata": {"labels": LABELS},
    "spec": {"containers": [{"name": "theirs", "image": "none"}]},
}
THEIRS: list[tuple[Kind, str, dict[str, Any]]] = [
    (SECRET, "main-client", {"stringData": {"password": "theirs"}}),
    (SECRET, "main-tls", {"stringData": {"password": "theirs"}}),
    (SERVICE_ACCOUNT, "main-store", {}),
    (SERVICE, "main", {"spec": {"selector": LABELS, "ports": [{"port": 80}]}}),
    (STATEFUL_SET, "main", {"spec": {"serviceName": "s", "selector": {"matchLabels": LABELS}, "template": THEIR_PODS}}),
    (POD_DISRUPTION_BUDGET, "main", {"spec": {"minAvailable": 1, "selector": {"matchLabels": LABELS}}}),
]


def written(kind: Kind, name: str, **fields: Any) -> Object:
    return {"apiVersion": kind.api_version, "kind": kind.name, "metadata": {"name": name}, **fields}


def substance(found: Object | None) -> Object:
    """Return an object without what controllers write."""
    assert found is not None
    return {name: value for name, value in found.items() if name != "status"} | {
        "metadata": {key: found["metadata"].get(key) for key in ("uid", "labels", "annotations", "ownerReferences")}
    }


@pytest.mark.parametrize(("kind", "name", "fields"), THEIRS, ids=lambda value: value if isinstance(value, str) else "")
async def test_an_object_of_another_owner_stays_as_it_is(world: World, kind: Kind, name: str, fields: Object) -> None:
    """The status names it and the remedy; once it is gone, the operator continues."""
    await world.apply(written(kind, name, **fields))
    before = substance(await world.get(kind, name))
    world.start(pods=PodSettings(image="store:1", tls=name == "main-tls", lease_seconds=2))
    await world.apply(store_cluster())
    found = await world.condition(STORE_CLUSTER, "main", "Degraded", reason="ForeignObject")
    words = str(found["status"]["conditions"])
    assert f"{kind.name} {world.namespace}/{name} exists already" in words
    assert "rename or delete it" in words
    assert substance(await world.get(kind, name)) == before
    await world.kube.delete(kind, name, world.namespace)
    await world.condition(STORE_CLUSTER, "main", "Ready")


async def test_objects_of_others_outlive_the_store_cluster(world: World) -> None:
    """Only objects created for a StoreCluster are deleted with it."""
    for kind, name, fields in THEIRS:
        await world.apply(written(kind, name, **fields))
    before = [substance(await world.get(kind, name)) for kind, name, _ in THEIRS]
    world.start()
    await world.apply(store_cluster())
    await world.condition(STORE_CLUSTER, "main", "Degraded", reason="ForeignObject")
    await world.run("delete", "storecluster/main", "--timeout=60s")
    assert [substance(await world.get(kind, name)) for kind, name, _ in THEIRS] == before
    assert not any(found["metadata"]["ownerReferences"] for found in before)


async def test_a_secret_in_a_clients_namespace(world: World) -> None:
    """The Secret of another StoreCluster of the same name, or of a user, is neither overwritten nor deleted."""
    clients = f"{world.namespace}-clients"
    await world.run("create", "namespace", clients)
    theirs = written(SECRET, "main-client", stringData={"token": "x"})
    theirs["metadata"]["namespace"] = clients
    await world.kube.create(theirs)
    before = substance(await world.kube.get(SECRET, "main-client", clients))
    world.start()
    await world.apply(store_cluster(clientNamespaces=[clients]))
    found = await world.condition(STORE_CLUSTER, "main", "Degraded", reason="ForeignObject")
    assert f"Secret {clients}/main-client exists already" in str(found["status"]["conditions"])
    await world.run("delete", "storecluster/main", "--timeout=60s")
    assert substance(await world.kube.get(SECRET, "main-client", clients)) == before


async def test_a_lease_of_another_program(world: World) -> None:
    """An operator whose Lease belongs to another program does not lead, and does not change it."""
    spec = {"holderIdentity": "theirs", "leaseDurationSeconds": 1}
    await world.apply(written(LEASE, "operator", spec=spec))
    operator = world.start()

    async def tried() -> bool:
        return operator.health.requests["GET", "leases", 200] > 2

    await world.until("the operator has read the Lease", tried)
    assert (await world.get(LEASE, "operator") or {})["spec"]["holderIdentity"] == "theirs"
    assert not operator.health.leading


async def owner(world: World) -> StoreCluster:
    """A StoreCluster without an operator."""
    await world.apply(store_cluster())
    found = parse(await world.get(STORE_CLUSTER, "main") or {})
    assert isinstance(found, StoreCluster)
    return found


async def test_a_field_that_is_no_longer_desired_is_removed(world: World) -> None:
    """Fields of an object created by POST count as applied from the first update on."""
    wanted, applier = stateful_set.service(await owner(world)), Applier(world.kube)
    assert await applier.apply(wanted) is Applied.CREATED
    less = copy.deepcopy(wanted)
    less["spec"]["ports"] = less["spec"]["ports"][:1]
    del less["spec"]["publishNotReadyAddresses"]
    assert await applier.apply(less) is Applied.UPDATED
    live = (await world.get(SERVICE, "main") or {})["spec"]
    assert len(live["ports"]) == 1
    assert not live.get("publishNotReadyAddresses")
    applier.forget()
    assert await applier.apply(less) is Applied.UNCHANGED


async def test_an_object_that_is_exchanged_in_between(world: World) -> None:
    """An update names the uid of the owned object, so it never changes its successor."""
    wanted, applier = stateful_set.service(await owner(world)), Applier(world.kube)
    await applier.apply(wanted)
    ours = await world.get(SERVICE, "main")
    await world.run("delete", "service/main")
    for step in ("the object is gone", "another took its place"):
        if step == "another took its place":
            await world.apply(written(SERVICE, "main", spec={"selector": LABELS, "ports": [{"port": 80}]}))

        async def stale(*_: object) -> Object | None:
            return copy.deepcopy(ours)

        less = copy.deepcopy(wanted)
        less["spec"]["ports"] = []
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(applier, "_find", stale)
            with pytest.raises(ApiConflictError):
                await applier.apply(less)
    assert (await world.get(SERVICE, "main") or {})["spec"]["selector"] == LABELS
