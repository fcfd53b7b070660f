"""A scene with four stores and a controller, in virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.controller.support import Scene


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async with Scene() as found:
        yield found
