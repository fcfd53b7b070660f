"""What holds for all tests."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# How long an example takes tells of the machine and of what else runs on it.
settings.register_profile("evenkeel", deadline=None)
settings.load_profile("evenkeel")

_FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note which tests failed, for `new_directory`."""
    report = yield
    if report.failed:
        item.stash[_FAILED] = True
    return report


@pytest.fixture
def new_directory(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[], Path]]:
    """Make directories with short paths, and remove them after the test unless it failed.

    The path of a unix socket has at most 107 bytes, which sockets below pytest's `tmp_path` may exceed.
    """
    made: list[Path] = []

    def make() -> Path:
        made.append(tmp_path_factory.mktemp("c"))
        return made[-1]

    yield make
    if not request.node.stash.get(_FAILED, False):
        for directory in made:
            shutil.rmtree(directory, ignore_errors=True)
