"""One real API server for the whole session, without nodes; a test has a namespace to itself."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from e2e.cluster.binaries import lacking
from e2e.cluster.control_plane import api_server
from e2e.cluster.kubectl import Kubectl
from e2e.cluster.layers import leave_out
from tests.repository.tree import ROOT

_numbers = itertools.count()


@pytest.fixture(scope="session")
def kubectl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubectl]:
    """Talks, as administrator, to an API server that has our CRDs."""
    if missing := lacking("kube-apiserver", "kubectl"):
        leave_out(f"not built yet: {', '.join(missing)} (make binaries ONLY=cluster)", unless="EVENKEEL_KUBERNETES")
    with api_server(tmp_path_factory.mktemp("kubernetes")) as plane:
        kubectl = plane.kubectl
        kubectl("apply", "--server-side", f"--filename={ROOT / 'crds'}")
        kubectl("wait", "--for=condition=Established", f"--filename={ROOT / 'crds'}")
        yield kubectl


@pytest.fixture
def namespace(kubectl: Kubectl) -> str:
    name = f"test-{next(_numbers)}"
    kubectl("create", "namespace", name)
    return name
