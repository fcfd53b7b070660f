"""Measurement of clock skew between stores."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from evenkeel.runtime.clock import VirtualClock
from evenkeel_raft.net.clock_skew import Skew, SkewProbe, clock_ahead
from evenkeel_raft.net.peer_frames import PEER_CODEC, VERSION, Alive
from evenkeel_raft.shared.identity import Address
from tests.raft_net.support import Raw, Store, introduce, turns


@pytest.mark.parametrize(
    ("skews", "ahead"),
    [
        ([], 0),
        ([Skew(0.9, 0.0)], 0),
        ([Skew(1.4, 0.5)], 0),
        ([Skew(-172_800.2, 0.01)], 172_800),
        ([Skew(172_800, 0.01), Skew(0.1, 0.01)], 0),
        ([Skew(-172_800, 0.01), Skew(-172_801, 0.01)], 172_800),
        ([Skew(7, 0.01), Skew(8, 0.01), Skew(-9, 0.01), Skew(6, 0.01)], -6),
    ],
)
def test_wrong_clocks_are_found(skews: list[Skew], ahead: int) -> None:
    """A clock is wrong if it differs from most others by more than a second and the measurement error."""
    assert clock_ahead(skews) == ahead


def probes(clock: VirtualClock, delays: list[float], *, ahead: float) -> tuple[SkewProbe, SkewProbe]:
    """Two connected probes; each frame takes the next delay, or the last one."""

    def send(to: int, frame: Alive) -> None:
        delay = delays.pop(0) if len(delays) > 1 else delays[0]
        clock.call_at(clock.now() + delay, lambda: ends[to].on_frame(frame))

    ends: list[SkewProbe] = []
    one = SkewProbe(lambda frame: send(1, frame), clock=clock, wall_clock=clock.now, seconds=10)
    ends.append(one)
    ends.append(
        SkewProbe(lambda frame: send(0, frame), clock=clock, wall_clock=lambda: clock.now() + ahead, seconds=10)
    )
    return ends[0], ends[1]


@pytest.mark.parametrize("ahead", [-86_400.0, 0.0, 3.5])
def test_measures_are_true_to_within_their_error(ahead: float) -> None:
    """The measurement is within its error for any split of the round trip; a faster round trip is preferred."""
    clock = VirtualClock()
    one, two = probes(clock, [0.001, 0.4, 0.2, 0.001, 0.3, 0.01], ahead=ahead)
    assert one.skew is None
    for _ in range(5):
        clock.advance(10)
        for probe, true in ((one, ahead), (two, -ahead)):
            assert probe.skew is not None
            assert abs(probe.skew.seconds - true) <= probe.skew.error + 1e-9
    assert one.skew is not None
    assert one.skew.error == pytest.approx(0.01)
    one.cancel()
    two.cancel()


async def test_stores_measure_each_other(new_store: Callable[..., Awaitable[Store]]) -> None:
    """Both stores measure the skew over the raft connection."""
    clock = VirtualClock()
    one = await new_store("store-1", clock=clock, wall_clock=lambda: 1000 + clock.now())
    two = await new_store("store-2", clock=clock, wall_clock=lambda: 1060 + clock.now())
    introduce(one, two)
    await turns(lambda: bool(one.peers.skews() and two.peers.skews()), clock)
    assert one.peers.skews()["store-2"].seconds == pytest.approx(60, abs=0.5)
    assert two.peers.skews()["store-1"].seconds == pytest.approx(-60, abs=0.5)


async def test_peer_of_the_first_release(new_store: Callable[..., Awaitable[Store]]) -> None:
    """A peer of the first release, which sends `alive` without fields, is connected but not measured."""
    store = await new_store("store-2")
    store.peers.set_peers({"store-1": Address("127.0.0.1", 1, "vol-store-1")})
    raw = await Raw.connect(store.port)
    raw.say(["hello", VERSION, "c", "store-1", "vol-store-1", "store-2", "raft"])
    assert (await raw.receive())[0] == "hello"
    received: Any = await raw.receive()
    assert received[0] == "alive"
    raw.say(["alive"], ["alive"])
    while received[0] == "alive" and received[1] is not None:
        received = await raw.receive()
    assert received == ["alive", None, None, 0.0]
    assert store.peers.connected("store-1")
    assert store.peers.skews() == {}
    await raw.close()


class OldAlive(msgspec.Struct, tag="alive", array_like=True, frozen=True):
    """`alive` as the first release declares it."""


def test_the_first_release_ignores_new_fields() -> None:
    """The first release ignores the additional fields."""
    for frame in (Alive(), Alive(asked=1.5), Alive(answers=1.5, wall=1.7e9)):
        assert msgspec.msgpack.decode(PEER_CODEC.encode(frame), type=OldAlive) == OldAlive()
