"""Leader election by a Lease."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from evenkeel.errors import LeaseNotFoundError
from evenkeel.kube.kube_client import Kube
from evenkeel.kube.object_kinds import LEASE
from evenkeel.runtime.clock import VirtualClock
from evenkeel_operator.kube.leader_lease import LeaseLock
from tests.kube_operator.support import FakeKube, turns


class Scene:
    """An API server in memory and a virtual clock."""

    def __init__(self) -> None:
        self.kube = FakeKube()
        self.clock = VirtualClock()

    def candidate(self, name: str) -> LeaseLock:
        return LeaseLock(
            cast(Kube, self.kube), name="lease", namespace="own", identity=name, duration=15, clock=self.clock
        )

    async def pass_time(self, seconds: float) -> None:
        for _ in range(round(seconds)):
            await turns()
            self.clock.advance(1)
        await turns()

    @property
    def spec(self) -> Any:
        return self.kube.objects[LEASE, "own", "lease"]["spec"]


async def test_the_first_candidate_leads() -> None:
    """It creates the Lease if it does not exist."""
    scene = Scene()
    await scene.candidate("a").acquire()
    assert scene.spec["holderIdentity"] == "a"
    assert scene.spec["leaseTransitions"] == 0


async def test_a_renewed_lease_is_not_taken() -> None:
    """While the leader renews, other candidates wait and know the holder."""
    scene = Scene()
    first, second = scene.candidate("a"), scene.candidate("b")
    await first.acquire()
    holding, waiting = asyncio.create_task(first.hold()), asyncio.create_task(second.acquire())
    await scene.pass_time(100)
    assert not holding.done()
    assert not waiting.done()
    assert second.holder == "a"
    for task in (holding, waiting):
        task.cancel()
    await asyncio.gather(holding, waiting, return_exceptions=True)


async def test_an_expired_lease_is_taken() -> None:
    """A candidate takes it after the whole duration since it saw the last renewal; the old leader notices."""
    scene = Scene()
    first, second = scene.candidate("a"), scene.candidate("b")
    await first.acquire()
    waiting = asyncio.create_task(second.acquire())
    await scene.pass_time(14)
    assert not waiting.done()
    await scene.pass_time(5)
    assert waiting.done()
    assert (scene.spec["holderIdentity"], scene.spec["leaseTransitions"]) == ("b", 1)
    holding = asyncio.create_task(first.hold())
    await scene.pass_time(3)
    with pytest.raises(LeaseNotFoundError, match="b holds the Lease now"):
        await holding


@pytest.mark.parametrize("how", ["it is away", "it does not answer"])
async def test_a_leader_stops_before_others_begin(how: str) -> None:
    """A leader that cannot renew gives up after two thirds of the duration."""
    scene = Scene()
    first = scene.candidate("a")
    await first.acquire()
    holding = asyncio.create_task(first.hold())
    if how == "it is away":
        scene.kube.away = True
    else:
        scene.kube.answers.clear()
    await scene.pass_time(8)
    assert not holding.done()
    await scene.pass_time(5)
    assert holding.done()
    with pytest.raises(LeaseNotFoundError, match="could not be renewed"):
        await holding


async def test_a_short_outage_does_not_end_the_term() -> None:
    """The term continues if the API server is back in time."""
    scene = Scene()
    first = scene.candidate("a")
    await first.acquire()
    holding = asyncio.create_task(first.hold())
    for _ in range(3):
        scene.kube.away = True
        await scene.pass_time(6)
        scene.kube.away = False
        await scene.pass_time(6)
    assert not holding.done()
    holding.cancel()
    await asyncio.gather(holding, return_exceptions=True)


async def test_a_released_lease_is_taken_at_once() -> None:
    """After an orderly shutdown of the leader another candidate need not wait."""
    scene = Scene()
    first, second = scene.candidate("a"), scene.candidate("b")
    await first.acquire()
    await first.release()
    waiting = asyncio.create_task(second.acquire())
    await scene.pass_time(1)
    assert waiting.done()
    await first.release()
    assert scene.spec["holderIdentity"] == "b", "a Lease of another holder is not released"


async def test_a_lease_of_another_program_is_left_alone() -> None:
    """It is neither taken after it expired nor changed; a Lease of an earlier release is recognized."""
    scene = Scene()
    theirs = scene.kube.add(LEASE, "lease", "own", spec={"holderIdentity": "", "leaseDurationSeconds": 1})
    waiting = asyncio.create_task(scene.candidate("a").acquire())
    await scene.pass_time(30)
    assert not waiting.done()
    assert scene.kube.objects[LEASE, "own", "lease"] == theirs
    scene.kube.objects[LEASE, "own", "lease"]["metadata"]["managedFields"] = [{"manager": "evenkeel-operator"}]
    await scene.pass_time(5)
    assert waiting.done()
    assert scene.spec["holderIdentity"] == "a"
