"""CRDs of another release than the operator's are detected and reported."""

from __future__ import annotations

from typing import Any, cast

import pytest

from evenkeel.errors import ApiForbiddenError
from evenkeel.kube.kube_client import Kube
from evenkeel.kube.object_kinds import CUSTOM_RESOURCE_DEFINITION, Kind
from evenkeel.model.crd import PRESENTATIONS, SCHEMA_ANNOTATION, crd
from evenkeel_operator.kube.crd_check import check_crds
from evenkeel_operator.process.operator_health import OperatorHealth
from evenkeel_operator.process.operator_metrics import OperatorMetrics
from tests.kube_operator.support import FakeKube


@pytest.fixture
def kube() -> FakeKube:
    """An API server with the CRDs of this release."""
    made = FakeKube()
    for kind in PRESENTATIONS:
        found = crd(kind)
        made.objects[CUSTOM_RESOURCE_DEFINITION, "", found["metadata"]["name"]] = found
    return made


async def check(kube: FakeKube) -> str | None:
    return await check_crds(cast(Kube, kube))


def notes(kube: FakeKube, name: str) -> dict[str, Any]:
    found: dict[str, Any] = kube.objects[CUSTOM_RESOURCE_DEFINITION, "", name]["metadata"]["annotations"]
    return found


async def test_crds_of_this_release_match(kube: FakeKube) -> None:
    """Other annotations on the CRDs do not matter."""
    notes(kube, "tables.evenkeel.dev")["helm.sh/resource-policy"] = "keep"
    assert await check(kube) == ""


async def test_mismatched_crds_are_named_with_the_remedy(kube: FakeKube) -> None:
    """Reported are CRDs of another release, without a schema annotation, and missing ones."""
    notes(kube, "tables.evenkeel.dev")[SCHEMA_ANNOTATION] = "0123456789abcdef"
    del kube.objects[CUSTOM_RESOURCE_DEFINITION, "", "storeclusters.evenkeel.dev"]["metadata"]["annotations"]
    del kube.objects[CUSTOM_RESOURCE_DEFINITION, "", "rebalanceplans.evenkeel.dev"]
    found = await check(kube)
    assert found is not None
    assert "storeclusters.evenkeel.dev, tables.evenkeel.dev, rebalanceplans.evenkeel.dev" in found
    assert "drops fields that they lack, and rejects values that they do not allow" in found
    assert "`helm upgrade`" in found
    assert "`kubectl apply --server-side -f crds/`" in found


async def test_an_operator_of_one_namespace_skips_the_check(kube: FakeKube, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may not read CRDs."""

    async def forbidden(kind: Kind, name: str, namespace: str = "") -> None:
        raise ApiForbiddenError("no", status=403)

    monkeypatch.setattr(kube, "get", forbidden)
    assert await check(kube) is None


@pytest.mark.parametrize(("crds", "line"), [("", " 1.0"), ("others", " 0.0"), (None, None)])
def test_the_metric(crds: str | None, line: str | None) -> None:
    """The metric is 1 if the CRDs match, 0 if not, and absent if that is unknown."""
    health = OperatorHealth()
    health.crds = crds
    page = OperatorMetrics(health, dict).render().decode()
    assert ("evenkeel_operator_crds_match" in page) == (line is not None)
    assert line is None or f"evenkeel_operator_crds_match{line}" in page
