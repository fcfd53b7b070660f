"""Only a leader's answer excludes a replica; timeouts and other answers do not."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from evenkeel.runtime.clock import VirtualClock
from evenkeel_raft.host.membership_checks import MembershipChecks
from evenkeel_raft.net.peer_frames import Inquiry, Verdict
from evenkeel_raft.net.peers import Peers

TIMEOUT = 1.0


class RecordedFrames:
    """Records the frames sent to peers."""

    def __init__(self) -> None:
        self.frames: list[tuple[str, Any]] = []

    def send_frame(self, store: str, frame: Any) -> None:
        self.frames.append((store, frame))


class Inquirer:
    """Store `a` asks whether its replica 7 of group 4 is excluded; b and c may answer."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.said = RecordedFrames()
        self.membership_checks = MembershipChecks({}, peers=cast("Peers", self.said), clock=self.clock, timeout=TIMEOUT)

    async def ask(self, *, of: str = "abc") -> asyncio.Task[bool]:
        asking = asyncio.create_task(self.membership_checks.ask(4, "a", 7, of=of))
        await asyncio.sleep(0)
        return asking

    def answer(self, store: str, *, excluded: bool, number: int = 1) -> None:
        self.membership_checks.on_verdict(store, Verdict(number, excluded))


@pytest.fixture
async def asking() -> Inquirer:
    return Inquirer()


async def test_all_other_stores_are_asked(asking: Inquirer) -> None:
    """All other stores are asked; a store cannot lead a group that excludes it."""
    task = await asking.ask()
    assert asking.said.frames == [(store, Inquiry(1, 4, "a", 7)) for store in "bc"]
    asking.answer("c", excluded=True)
    assert await task


async def test_a_timeout_excludes_nothing(asking: Inquirer) -> None:
    """A timeout excludes nothing, also after one negative answer."""
    for answers in ("", "b"):
        task = await asking.ask()
        for store in answers:
            asking.answer(store, excluded=False, number=2)
        assert not task.done()
        asking.clock.advance(TIMEOUT)
        assert not await task


async def test_a_single_store_excludes_nothing(asking: Inquirer) -> None:
    """Without other stores, nothing is excluded."""
    assert not await (await asking.ask(of="a"))
    assert not asking.said.frames


async def test_the_check_ends_with_the_last_answer(asking: Inquirer) -> None:
    """The check ends once all stores have answered no."""
    task = await asking.ask()
    asking.answer("b", excluded=False)
    asking.answer("c", excluded=False)
    assert not await task


async def test_unrelated_answers_are_ignored(asking: Inquirer) -> None:
    """Answers from other stores and to earlier inquiries are ignored."""
    task = await asking.ask()
    asking.answer("d", excluded=True)
    asking.answer("b", excluded=True, number=9)
    asking.clock.advance(TIMEOUT)
    assert not await task
    asking.answer("b", excluded=True)


async def test_a_store_without_the_group_answers_no(asking: Inquirer) -> None:
    """A store without the group answers no, and so does one asked about a third store's replica."""
    asking.membership_checks.on_inquiry("b", Inquiry(3, 4, "b", 8))
    asking.membership_checks.on_inquiry("b", Inquiry(5, 4, "c", 9))
    assert asking.said.frames == [("b", Verdict(3, False)), ("b", Verdict(5, False))]
