"""Fixtures: one cluster for the whole session, and namespaces for tests."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster.cluster_errors import UnavailableError, UnsupportedError
from e2e.cluster.images import export
from e2e.cluster.layers import leave_out
from e2e.cluster.processes import run
from e2e.cluster.provider import Cluster, chosen
from e2e.cluster.provider import cluster as some_cluster
from e2e.picture import picture
from e2e.release import CHART, Install, Release, load_images, merged, values
from e2e.shop import Shop
from tests.repository.tree import ROOT

_OWNER = 65532
_numbers = itertools.count()
_running = pytest.StashKey[Cluster]()
# Includes fixtures. Every wait has its own timeout, and slow machines need their sum.
_TIMEOUT_SECONDS = 900


@pytest.fixture(scope="session")
def cluster(pytestconfig: pytest.Config) -> Iterator[Cluster]:
    """Return a cluster with three worker nodes."""
    with contextlib.ExitStack() as stack:
        try:
            running = stack.enter_context(some_cluster(f"e2e-{os.getpid()}"))
        except UnavailableError as error:
            leave_out(f"there is no cluster: {error}")
        pytestconfig.stash[_running] = running
        yield running


@pytest.fixture(scope="session")
def python_image(cluster: Cluster) -> str:
    """Load the base image of the project, which has Python, onto every node."""
    tag = run(ROOT / "scripts" / "base-image.sh", within=900).strip()
    cluster.load_images(export(tag))
    return tag


@pytest.fixture(scope="session")
def _images(cluster: Cluster) -> None:
    """Load the images that `make images` built onto every node."""
    load_images(cluster)


@pytest.fixture(scope="session")
def evenkeel(cluster: Cluster, _images: None) -> Iterator[Release]:
    """Install Evenkeel by Helm, with the default values."""
    cluster.add_volumes(1, owner=_OWNER)
    release = Release(cluster.kubectl)
    release.install()
    yield release
    release.uninstall()


@pytest.fixture
def install(cluster: Cluster, _images: None, namespace: str) -> Iterator[Install]:
    """Return a function that installs the chart with other values; everything is removed at the end."""
    cluster.add_volumes(3, owner=_OWNER)
    release, shop = Release(cluster.kubectl), Shop(cluster.kubectl, namespace)

    def installed(*changes: dict[str, Any], chart: Path = CHART) -> tuple[Release, Shop]:
        release.chart = chart
        release.install(merged(values(), *changes))
        return release, shop

    yield installed
    shop.close()
    release.uninstall()
    # Includes what an uninstall keeps: etcd's volumes and the seed.
    cluster.kubectl("delete", "namespace", release.namespace, "--timeout=90s", within=100)


@pytest.fixture
def shop(cluster: Cluster, evenkeel: Release, namespace: str) -> Iterator[Shop]:
    """Return a namespace for a StoreCluster and a Table, which are removed at the end."""
    cluster.add_volumes(2, owner=_OWNER)
    shop = Shop(evenkeel.kubectl, namespace)
    yield shop
    shop.close()


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    name = f"evenkeel-test-{os.getpid()}-{next(_numbers)}"
    cluster.kubectl("create", "namespace", name)
    yield name
    cluster.kubectl("delete", "namespace", name, "--wait=false")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Set timeouts, and run tests with their own installation of the chart first.

    The shared installation would serve their namespaces too.
    """
    items.sort(key=lambda item: "install" not in getattr(item, "fixturenames", ()))
    for item in items:
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(_TIMEOUT_SECONDS))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Print the state of the cluster for a failed test, before its fixtures remove everything."""
    report = yield
    if report.failed and (cluster := item.config.stash.get(_running, None)) is not None:
        report.sections.append(("the cluster", picture(cluster.kubectl)))
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    """Skip a test whose fixtures need what the provider cannot do."""
    with _left_out(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Skip a test that needs what the provider cannot do."""
    with _left_out(item):
        return (yield)


@contextlib.contextmanager
def _left_out(item: pytest.Item) -> Iterator[None]:
    try:
        yield
    except UnsupportedError as error:
        leave_out(f"{item.name} cannot run on {chosen()}: {error}")
