"""One leader among candidates."""

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
    """An API server in memory, and time that stands still."""

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


async def test_the_first_one_leads() -> None:
    """The Lease is made where it is not there."""
    scene = Scene()
    await scene.candidate("a").acquire()
    assert scene.spec["holderIdentity"] == "a"
    assert scene.spec["leaseTransitions"] == 0


async def test_nobody_takes_what_is_renewed() -> None:
    """While the leader renews, others wait; they know who leads."""
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


async def test_a_silent_leader_is_followed() -> None:
    """After its whole duration, counted from when the candidate saw it last renewed; and it learns that it lost."""
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
    """Who cannot renew gives up after two thirds of the time, though nobody has said anything."""
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


async def test_a_moment_without_the_api_server_costs_nothing() -> None:
    """The term goes on if the API server is back in time."""
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


async def test_a_lease_that_is_let_go_is_taken_at_once() -> None:
    """A leader that ends in good order costs nobody any time."""
    scene = Scene()
    first, second = scene.candidate("a"), scene.candidate("b")
    await first.acquire()
    await first.release()
    waiting = asyncio.create_task(second.acquire())
    await scene.pass_time(1)
    assert waiting.done()
    await first.release()
    assert scene.spec["holderIdentity"] == "b", "what another has is not ours to let go"


async def test_a_lease_of_another_program_is_left_alone() -> None:
    """It is neither taken when it has run out nor changed; a Lease of an earlier release is recognized."""
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
