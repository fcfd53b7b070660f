"""Applying objects: nothing is sent where all is well, and nobody's objects are taken."""

from __future__ import annotations

import copy
from typing import Any, cast

import pytest

from evenkeel.errors import ApiConflictError
from evenkeel.kube.client import Kube
from evenkeel.kube.kinds import SERVICE
from evenkeel_operator.kube.apply import APPLIED_ANNOTATION, Applied, Applier, covers, stamped
from evenkeel_operator.manifests import stores
from tests.kube_operator.support import FakeKube, store_cluster

WANTED = stores.service(store_cluster())


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
    """Everything wanted has to be there; what the API server adds does not count, lists aside."""
    assert covers(live, wanted) is expected


async def test_created_updated_unchanged() -> None:
    """The answer says what was done, and the second time nothing is even sent."""
    kube = FakeKube()
    applier = Applier(cast(Kube, kube))
    assert await applier.apply(WANTED) is Applied.CREATED
    assert await applier.apply(WANTED) is Applied.UNCHANGED
    assert kube.calls == ["apply Service"]
    other = copy.deepcopy(WANTED)
    other["spec"]["ports"] = []
    assert await applier.apply(other) is Applied.UPDATED


async def test_what_is_seen_to_differ_is_applied() -> None:
    """Where the object is watched, somebody's change is put right; what is as wanted is left alone."""
    kube = FakeKube()
    applier = Applier(cast(Kube, kube))
    await applier.apply(WANTED)
    live = await kube.get(SERVICE, "main", "shop")
    assert live is not None
    assert await applier.apply(WANTED, live) is Applied.UNCHANGED
    live["spec"]["publishNotReadyAddresses"] = False
    await applier.apply(WANTED, live)
    assert kube.calls.count("apply Service") == 2


async def test_a_field_that_is_no_longer_wanted_is_removed() -> None:
    """Nothing wanted is missing, and yet there is something to do: the digest says so."""
    kube = FakeKube()
    applier = Applier(cast(Kube, kube))
    await applier.apply(WANTED)
    live = await kube.get(SERVICE, "main", "shop")
    less = copy.deepcopy(WANTED)
    del less["spec"]["publishNotReadyAddresses"]
    assert covers(live, less)
    assert await applier.apply(less, live) is Applied.UPDATED


def test_the_digest_is_of_the_content() -> None:
    """The same object has the same digest, whatever the order of its fields."""
    turned = dict(reversed(WANTED.items()))
    digests = [stamped(subject)["metadata"]["annotations"][APPLIED_ANNOTATION] for subject in (WANTED, turned)]
    assert digests[0] == digests[1]


async def test_our_own_object_is_taken_back() -> None:
    """Fields that somebody set in what we made are overruled."""
    kube = FakeKube()
    kube.add(SERVICE, "main", theirs=True)
    kube.objects[SERVICE, "shop", "main"]["metadata"] |= {
        "labels": WANTED["metadata"]["labels"],
        "ownerReferences": WANTED["metadata"]["ownerReferences"],
    }
    await Applier(cast(Kube, kube)).apply(WANTED)
    assert kube.calls[-1] == "apply Service by force"


async def test_somebody_elses_object_is_not() -> None:
    """An object of the same name that we did not make stays as it is."""
    kube = FakeKube()
    kube.add(SERVICE, "main", theirs=True)
    with pytest.raises(ApiConflictError):
        await Applier(cast(Kube, kube)).apply(WANTED)
    assert "apply Service by force" not in kube.calls
