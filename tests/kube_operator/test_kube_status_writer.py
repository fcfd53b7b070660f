"""Status writes: the newest of each object, rate-limited, and readable at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import cast

import pytest
import pytest_asyncio

from evenkeel.errors import KubernetesError
from evenkeel.kube.kube_client import Kube
from evenkeel.kube.object_kinds import TABLE, Kind, Object
from evenkeel.runtime.clock import VirtualClock
from evenkeel_operator.kinds import OWNER_FIELDS
from evenkeel_operator.kube.kube_status_writer import KubeStatusWriter
from evenkeel_operator.kube.object_cache import Cache
from tests.kube_operator.support import FakeKube, turns


class OlderCrds(FakeKube):
    """An API server whose CRDs enumerate the condition types that they allow."""

    def __init__(self) -> None:
        super().__init__()
        self.allowed = {"Ready", "Progressing", "Balanced", "Degraded", "Accepted", "Approved"}

    async def set_status(self, kind: Kind, name: str, namespace: str, *, uid: str, status: Object) -> Object | None:
        refused = {entry["type"] for entry in status.get("conditions", ())} - self.allowed
        if refused:
            await self._called(f"refused {kind.name} {name}")
            raise KubernetesError(f"status.conditions[1].type: Unsupported value: {sorted(refused)}", status=422)
        return await super().set_status(kind, name, namespace, uid=uid, status=status)


class Scene:
    """An API server in memory and a virtual clock."""

    def __init__(self) -> None:
        self.kube = OlderCrds()
        self.clock = VirtualClock()
        self.cache = Cache(OWNER_FIELDS)
        self.writes: list[tuple[Object, Object]] = []
        self.statuses = KubeStatusWriter(
            cast(Kube, self.kube),
            self.cache,
            on_written=lambda before, after: self.writes.append((before, after)),
            interval=2,
            clock=self.clock,
        )
        self.subject = self.kube.add(TABLE, "orders", spec={})
        self.cache.put(TABLE, self.subject)

    def written(self) -> object:
        return self.kube.objects[TABLE, "shop", "orders"].get("status")

    def seen(self) -> Object:
        found = self.cache.get(TABLE, "shop", "orders")
        assert found is not None
        return found


@pytest_asyncio.fixture
async def scene() -> AsyncIterator[Scene]:
    made = Scene()
    task = asyncio.create_task(made.statuses.run())
    yield made
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_the_first_is_written_at_once(scene: Scene) -> None:
    """The cache has it before any watch event."""
    scene.statuses.set(scene.subject, {"moving": 1})
    assert scene.statuses.of(scene.subject) == {"moving": 1}
    await turns()
    assert scene.written() == {"moving": 1}
    assert scene.seen()["status"] == {"moving": 1}
    [(before, after)] = scene.writes
    assert (before.get("status"), after["status"]) == (None, {"moving": 1})


async def test_a_burst_is_two_writes(scene: Scene) -> None:
    """Of the statuses within the interval only the newest is written."""
    for moving in range(10):
        scene.statuses.set(scene.subject, {"moving": moving})
        await turns()
    assert scene.written() == {"moving": 0}
    assert scene.statuses.of(scene.seen()) == {"moving": 9}
    scene.clock.advance(2)
    await turns()
    assert scene.written() == {"moving": 9}
    assert scene.statuses.written == 2


async def test_an_unchanged_status_is_not_written(scene: Scene) -> None:
    """Neither a status that is written nor one that is pending is written again."""
    scene.statuses.set(scene.subject, {"moving": 1})
    await turns()
    scene.clock.advance(5)
    scene.statuses.set(scene.seen(), {"moving": 1})
    await turns()
    assert scene.statuses.written == 1


async def test_an_unreachable_api_server_gets_the_status_later(scene: Scene) -> None:
    """The write is retried, but not continuously."""
    scene.kube.away = True
    scene.statuses.set(scene.subject, {"moving": 1})
    for _ in range(20):
        await turns()
        scene.clock.advance(1)
    assert 3 <= len(scene.kube.calls) <= 6
    scene.kube.away = False
    scene.clock.advance(5)
    await turns()
    assert scene.written() == {"moving": 1}
    assert len(scene.statuses) == 0


async def test_another_object_of_the_name_keeps_its_status(scene: Scene) -> None:
    """A status belongs to the object it was set for, not to its successor."""
    scene.kube.add(TABLE, "orders")["metadata"]["uid"] = "other"
    scene.kube.objects[TABLE, "shop", "orders"]["metadata"]["uid"] = "other"
    scene.statuses.set(scene.subject, {"moving": 1})
    await turns()
    assert scene.written() is None
    assert len(scene.statuses) == 0
    assert scene.writes == []


def status_with(**conditions: str) -> Object:
    return {"moving": 1, "conditions": [{"type": kind, "status": status} for kind, status in conditions.items()]}


async def test_crds_of_the_first_release_get_the_conditions_they_know(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    """They reject a whole status for one condition; Ready is written nevertheless, and the log has one warning."""
    scene.statuses.set(scene.subject, status_with(Ready="True"))
    await turns()
    for moving in range(2):
        scene.clock.advance(2)
        wanted = status_with(Ready="False", Available="False", Stalled="True", MetastoreMismatch="False")
        scene.statuses.set(scene.seen(), wanted | {"moving": moving})
        await turns()
        assert scene.written() == status_with(Ready="False") | {"moving": moving}
        assert len(scene.statuses) == 0
    assert scene.kube.calls.count("refused Table orders") == 2
    assert [entry.levelname for entry in caplog.records] == ["WARNING"]
    assert "Unsupported value" in caplog.text


async def test_newer_crds_get_all_conditions(scene: Scene) -> None:
    """The omitted conditions differ from the desired status, so the next reconciliation writes them."""
    scene.statuses.set(scene.subject, status_with(Ready="False", Stalled="True"))
    await turns()
    scene.kube.allowed |= {"Stalled"}
    scene.clock.advance(2)
    scene.statuses.set(scene.seen(), status_with(Ready="False", Stalled="True"))
    await turns()
    assert scene.written() == status_with(Ready="False", Stalled="True")


async def test_a_status_rejected_for_another_reason_is_retried(scene: Scene) -> None:
    """Omitting conditions would not help, so it is not written again at once."""
    scene.kube.allowed = set()
    scene.statuses.set(scene.subject, status_with(Ready="False"))
    await turns()
    assert (scene.kube.calls, len(scene.statuses), scene.written()) == (["refused Table orders"], 1, None)
