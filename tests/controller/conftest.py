"""A scene with four stores and a controller, in virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from evenkeel.versions import SUPPORTED
from tests.controller.support import Scene


@pytest.fixture
async def scene(request: pytest.FixtureRequest) -> AsyncIterator[Scene]:
    async with Scene(versions=getattr(request, "param", SUPPORTED)) as found:
        yield found
