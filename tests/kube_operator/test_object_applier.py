"""Applying objects: nothing is sent for unchanged objects, and objects of other owners are not changed."""

from __future__ import annotations

import copy
from typing import Any, cast

import pytest
from msgspec import json

from evenkeel.errors import ForeignObjectError
from evenkeel.kube.kube_client import Kube
from evenkeel.kube.object_kinds import SECRET, SERVICE, Kind, Object, kind_of
from evenkeel_operator.kube.object_applier import APPLIED_ANNOTATION, Applied, Applier, covers, with_digest
from evenkeel_operator.manifests import cert_manager, secrets, stateful_set
from evenkeel_operator.manifests.object_names import labels_of
from evenkeel_operator.manifests.pod_settings import CertManagerSettings, MetastoreAccess, PodSettings
from tests.kube_operator.support import FakeKube, store_cluster

WANTED = stateful_set.service(store_cluster())


@pytest.mark.parametrize(
    ("live", "wanted", "expected"),
    [
        ({"a": 1, "b": 2}, {"a": 1}, True),
        ({"a": 1}, {"a": 2}, False),
        ({}, {"a": None}, False),
        ({"a": {"x": 1, "default": 0}}, {"a": {"x": 1}}, True),
        ([{"p": 1, "protocol": "TCP"}], [{"p": 1}], True),
        ([{"p": 1}, {"p": 2}], [{"p": 1}], False),
        ({"a": [1]}, {"a": {"x": 1}}, False),
        ({"a": "text"}, {"a": {}}, False),
    ],
)
def test_covers(live: Any, wanted: Any, expected: bool) -> None:
    """Every desired field must be present; fields that the API server adds are ignored, except in lists."""
    assert covers(live, wanted) is expected


async def test_created_updated_unchanged() -> None:
    """The result says what was done; an unchanged object is not sent again."""
    kube = FakeKube()
    applier = Applier(cast(Kube, kube))
    assert await applier.apply(WANTED) is Applied.CREATED
    assert await applier.apply(WANTED) is Applied.UNCHANGED
    assert kube.calls == ["get Service main", "create Service"]
    other = copy.deepcopy(WANTED)
    other["spec"]["ports"] = []
    assert await applier.apply(other) is Applied.UPDATED


async def test_a_watched_object_that_differs_is_applied() -> None:
    """A change by another client is reverted; an object that is as desired is not sent."""
    kube = FakeKube()
    applier = Applier(cast(Kube, kube))
    await applier.apply(WANTED)
    live = await kube.get(SERVICE, "main", "shop")
    assert live is not None
    assert await applier.apply(WANTED, live) is Applied.UNCHANGED
    live["spec"]["publishNotReadyAddresses"] = False
    live["metadata"]["resourceVersion"] = kube.add_fields(SERVICE, "main", spec=live["spec"])
    assert await applier.apply(WANTED, live) is Applied.UPDATED
    assert kube.calls[-1] == "apply Service by force"


async def test_a_field_that_is_no_longer_desired_is_removed() -> None:
    """All desired fields are present, but the digest differs."""
    kube = FakeKube()
    applier = Applier(cast(Kube, kube))
    await applier.apply(WANTED)
    live = await kube.get(SERVICE, "main", "shop")
    less = copy.deepcopy(WANTED)
    del less["spec"]["publishNotReadyAddresses"]
    assert covers(live, less)
    assert await applier.apply(less, live) is Applied.UPDATED


def test_the_digest_is_of_the_content() -> None:
    """The order of fields does not matter."""
    turned = dict(reversed(WANTED.items()))
    digests = [with_digest(subject)["metadata"]["annotations"][APPLIED_ANNOTATION] for subject in (WANTED, turned)]
    assert digests[0] == digests[1]


async def test_fields_that_others_set_are_overridden() -> None:
    """An owned object is brought back to its desired state."""
    kube = FakeKube()
    kube.add(SERVICE, "main", theirs=True)
    kube.objects[SERVICE, "shop", "main"]["metadata"] |= {
        "labels": WANTED["metadata"]["labels"],
        "ownerReferences": WANTED["metadata"]["ownerReferences"],
    }
    await Applier(cast(Kube, kube)).apply(WANTED)
    assert kube.calls[-1] == "apply Service by force"


CLUSTER = store_cluster(clientNamespaces=["jobs"])
MADE = [
    stateful_set.service_account(CLUSTER),
    stateful_set.service(CLUSTER),
    stateful_set.budget(CLUSTER),
    stateful_set.stateful_set(
        CLUSTER, PodSettings(image="store:1"), MetastoreAccess(endpoints=("http://etcd:2379",)), replicas=3
    ),
    secrets.metastore_copy(CLUSTER, {"username": "u"}),
    secrets.store_certificate(CLUSTER, authority="a", certificate="c", key="k"),
    *secrets.client_secrets(CLUSTER, token="t"),
    secrets.etcd_certificate("etcd-tls", "shop", labels=labels_of(CLUSTER), authority="a", certificate="c", key="k"),
    *cert_manager.requested(CLUSTER, CertManagerSettings()),
]


def _owner_of(subject: Object) -> Object:
    metadata = subject["metadata"]
    return {name: metadata[name] for name in ("labels", "annotations", "ownerReferences") if name in metadata}


@pytest.mark.parametrize("wanted", MADE, ids=lambda wanted: f"{wanted['kind']} {wanted['metadata']['name']}")
@pytest.mark.parametrize("how", ["unmarked", "of another StoreCluster", "copied labels"])
async def test_objects_of_others_are_neither_changed_nor_deleted(wanted: Object, how: str) -> None:
    """An object of any kind with another owner stays byte for byte as it is."""
    kube, metadata = FakeKube(), wanted["metadata"]
    theirs = kube.add(kind_of(wanted), metadata["name"], metadata["namespace"], data={"theirs": "x"})
    key = (kind_of(wanted), metadata["namespace"], metadata["name"])
    if how == "of another StoreCluster":
        text = json.encode(_owner_of(wanted)).replace(b'"u1"', b'"u2"').replace(b'"shop/etcd-tls"', b'"other/etcd-tls"')
        kube.objects[key]["metadata"] |= json.decode(text)
    elif how == "copied labels":
        kube.objects[key]["metadata"] |= {"labels": metadata["labels"]}
    theirs = copy.deepcopy(kube.objects[key])
    applier = Applier(cast(Kube, kube))
    words = f"{wanted['kind']} {metadata['namespace']}/{metadata['name']} exists already.*; rename or delete it"
    for _ in range(2):
        with pytest.raises(ForeignObjectError, match=words):
            await applier.apply(wanted)
        assert not await applier.delete(wanted)
        applier.forget()
    assert kube.objects[key] == theirs
    assert {call.split()[0] for call in kube.calls} == {"get"}


class Contested(FakeKube):
    """Another client creates an object of the same name right after a read."""

    async def get(self, kind: Kind, name: str, namespace: str = "") -> Object | None:
        found = await super().get(kind, name, namespace)
        if found is None:
            self.add(kind, name, namespace, data={"theirs": "x"})
        return found


async def test_an_object_that_appears_in_between_is_not_merged_into() -> None:
    """The creation fails, and the next read finds the other owner."""
    kube = Contested()
    with pytest.raises(ForeignObjectError):
        await Applier(cast(Kube, kube)).apply(WANTED)
    assert kube.objects[SERVICE, "shop", "main"]["data"] == {"theirs": "x"}


async def test_an_object_that_is_exchanged_in_between_is_not_merged_into() -> None:
    """An update names the uid of the object that was read."""
    kube = FakeKube()
    applier = Applier(cast(Kube, kube))
    await applier.apply(WANTED)
    ours = kube.objects[SERVICE, "shop", "main"]

    async def exchanged(kind: Kind, name: str, namespace: str = "") -> Object | None:
        found = copy.deepcopy(kube.objects[kind, namespace, name])
        kube.add(kind, name, namespace, data={"theirs": "x"})
        return found

    kube.get = exchanged  # type: ignore[method-assign]
    other = copy.deepcopy(WANTED)
    other["spec"]["ports"] = []
    assert ours["metadata"]["uid"] != f"uid-{ours['metadata']['name']}"
    with pytest.raises(ForeignObjectError):
        await applier.apply(other)
    assert kube.objects[SERVICE, "shop", "main"]["data"] == {"theirs": "x"}


@pytest.mark.parametrize("wanted", MADE, ids=lambda wanted: f"{wanted['kind']} {wanted['metadata']['name']}")
async def test_owned_objects_are_updated_and_deleted(wanted: Object) -> None:
    """Every object that the operator creates names its owner."""
    kube = FakeKube()
    applier = Applier(cast(Kube, kube))
    assert await applier.apply(wanted) is Applied.CREATED
    changed = copy.deepcopy(wanted)
    changed["changed"] = True
    assert await applier.apply(changed) is Applied.UPDATED
    assert await applier.delete(wanted)
    assert kube.objects == {}


async def test_objects_of_the_previous_release_are_recognized() -> None:
    """They have only labels and a digest in client namespaces."""
    kube, wanted = FakeKube(), secrets.client_secrets(CLUSTER, token="t")[1]
    made = kube.add(SECRET, "main-client", "jobs", data={})["metadata"]
    made |= {"labels": wanted["metadata"]["labels"], "annotations": {APPLIED_ANNOTATION: "0"}}
    kube.objects[SECRET, "jobs", "main-client"]["metadata"] = made | {
        "managedFields": [{"manager": "evenkeel-operator", "operation": "Apply"}]
    }
    assert await Applier(cast(Kube, kube)).apply(wanted) is Applied.UPDATED
