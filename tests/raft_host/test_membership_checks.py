"""Only a leader that says so excludes a replica: silence, and what others say, leave its data alone."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from evenkeel.runtime.clock import VirtualClock
from evenkeel_raft.host.membership_checks import MembershipChecks
from evenkeel_raft.net.peer_frames import Inquiry, Verdict
from evenkeel_raft.net.peers import Peers

TIMEOUT = 1.0


class Said:
    """Peers that keep what they are told."""

    def __init__(self) -> None:
        self.frames: list[tuple[str, Any]] = []

    def send_frame(self, store: str, frame: Any) -> None:
        self.frames.append((store, frame))


class Asking:
    """A store that wants to know whether its replica 7 of group 4 is excluded; b and c may tell."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.said = Said()
        self.membership_checks = MembershipChecks({}, peers=cast("Peers", self.said), clock=self.clock, timeout=TIMEOUT)

    async def ask(self, *, of: str = "abc") -> asyncio.Task[bool]:
        asking = asyncio.create_task(self.membership_checks.ask(4, "a", 7, of=of))
        await asyncio.sleep(0)
        return asking

    def answer(self, store: str, *, excluded: bool, number: int = 1) -> None:
        self.membership_checks.on_verdict(store, Verdict(number, excluded))


@pytest.fixture
async def asking() -> Asking:
    return Asking()


async def test_everybody_else_is_asked(asking: Asking) -> None:
    """The store itself is not: it cannot lead what it is excluded from."""
    task = await asking.ask()
    assert asking.said.frames == [(store, Inquiry(1, 4, "a", 7)) for store in "bc"]
    asking.answer("c", excluded=True)
    assert await task


async def test_silence_excludes_nobody(asking: Asking) -> None:
    """Nobody answers, or only one who does not know."""
    for answers in ("", "b"):
        task = await asking.ask()
        for store in answers:
            asking.answer(store, excluded=False, number=2)
        assert not task.done()
        asking.clock.advance(TIMEOUT)
        assert not await task


async def test_nobody_to_ask_excludes_nobody(asking: Asking) -> None:
    """A store that is alone keeps what it has."""
    assert not await (await asking.ask(of="a"))
    assert not asking.said.frames


async def test_all_say_no_at_once(asking: Asking) -> None:
    """The answer does not wait for the time to pass."""
    task = await asking.ask()
    asking.answer("b", excluded=False)
    asking.answer("c", excluded=False)
    assert not await task


async def test_only_the_asked_answer_and_what_was_asked(asking: Asking) -> None:
    """A store that was not asked, and the answer to an earlier question, count for nothing."""
    task = await asking.ask()
    asking.answer("d", excluded=True)
    asking.answer("b", excluded=True, number=9)
    asking.clock.advance(TIMEOUT)
    assert not await task
    asking.answer("b", excluded=True)


async def test_who_does_not_hold_the_group_says_no(asking: Asking) -> None:
    """And so does everybody where a store asks about the replica of another."""
    asking.membership_checks.on_inquiry("b", Inquiry(3, 4, "b", 8))
    asking.membership_checks.on_inquiry("b", Inquiry(5, 4, "c", 9))
    assert asking.said.frames == [("b", Verdict(3, False)), ("b", Verdict(5, False))]
