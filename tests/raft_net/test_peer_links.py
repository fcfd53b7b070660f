"""Raft messages between stores: batched, ordered, over one connection that reconnects, without blocking."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import get_args

import msgspec
import pytest

from evenkeel.runtime.clock import VirtualClock
from evenkeel.versions import VersionRange
from evenkeel.wire.framing import Reason
from evenkeel_raft.core import raft_messages as raft
from evenkeel_raft.core.raft_types import CONF, NORMAL, Conf, Entry, SnapshotMeta
from evenkeel_raft.net.peer_frames import VERSION, Inquiry, Verdict
from evenkeel_raft.shared.identity import Address
from tests.raft_net.support import HOST, QUICK, Proxy, Raw, Store, introduce, turns

NewStore = Callable[..., Awaitable[Store]]
NewProxy = Callable[[int], Awaitable[Proxy]]

SAMPLES: dict[object, object] = {
    int: 1 << 62,
    bool: True,
    bool | None: True,
    list[Entry]: [Entry(10, 3, NORMAL, b"x"), Entry(11, 3, CONF, b"")],
    SnapshotMeta: SnapshotMeta(8, 2, Conf((1, 2), (1,), (3,), (), 5, True, {1: b"store"})),
}
ALL_KINDS: list[raft.Message] = [
    kind(**{field.name: SAMPLES[field.type] for field in msgspec.structs.fields(kind)})
    for kind in get_args(raft.AnyMessage)
]


def small(number: int) -> raft.ReadRequest:
    return raft.ReadRequest(number, 0, 1, 2, 3, 4)


async def pair(new_store: NewStore, **options: object) -> tuple[Store, Store]:
    one, two = await new_store("store-1", **options), await new_store("store-2", **options)
    introduce(one, two)
    assert await one.handler.up.get() == "store-2"
    assert await two.handler.up.get() == "store-1"
    return one, two


async def test_every_kind_arrives(new_store: NewStore) -> None:
    """Every kind of message arrives unchanged in both directions, commit notices and heartbeats first."""
    one, two = await pair(new_store)
    for sender, receiver in ((one, two), (two, one)):
        sender.peers.send_all(receiver.name, ALL_KINDS)
        got = [await receiver.handler.messages.get() for _ in ALL_KINDS]
        ahead = sorted(
            ALL_KINDS, key=lambda m: (not isinstance(m, raft.CommitNotice), not isinstance(m, raft.Heartbeat))
        )
        assert got == [(sender.name, m) for m in ahead]


async def test_inquiries_and_verdicts_arrive(new_store: NewStore) -> None:
    """Inquiries and verdicts reach connected stores and are dropped for others."""
    one, two = await pair(new_store)
    question, verdict = Inquiry(7, 4, "store-1", 3), Verdict(7, True)
    one.peers.send_frame("store-9", question)
    one.peers.send_frame("store-2", question)
    assert await two.handler.inquiries.get() == ("store-1", question)
    two.peers.send_frame("store-1", verdict)
    assert await one.handler.verdicts.get() == ("store-2", verdict)


async def test_commit_notices_are_delayed(new_store: NewStore) -> None:
    """Commit notices leave after some milliseconds, only the newest per group, or earlier with other messages."""
    clock = VirtualClock()
    one, two = await pair(new_store, clock=clock)
    for commit in (4, 5):
        one.peers.send("store-2", raft.CommitNotice(1, 0, 1, 2, 3, commit))
        one.peers.flush()
    await asyncio.sleep(0)
    assert two.handler.batches == []
    clock.advance(QUICK.notice_seconds)
    assert await two.handler.messages.get() == ("store-1", raft.CommitNotice(1, 0, 1, 2, 3, 5))
    one.peers.send("store-2", raft.CommitNotice(1, 0, 1, 2, 3, 6))
    one.peers.send("store-2", small(1))
    assert [(await two.handler.messages.get())[1] for _ in range(2)] == [raft.CommitNotice(1, 0, 1, 2, 3, 6), small(1)]
    clock.advance(1.0)
    one.peers.send("store-2", small(2))
    assert await two.handler.messages.get() == ("store-1", small(2))
    assert two.handler.batches == [1, 2, 1]


async def test_messages_of_one_turn_share_a_frame(new_store: NewStore) -> None:
    """Messages of one turn of the event loop share a frame."""
    one, two = await pair(new_store)
    for group in range(1000):
        one.peers.send("store-2", raft.Heartbeat(group, 0, 1, 2, 3, 4, 0, False))
        one.peers.send("store-2", small(group))
    for _ in range(2000):
        await two.handler.messages.get()
    assert two.handler.batches == [2000]


async def test_order_is_kept_across_batches(new_store: NewStore) -> None:
    """Messages of many turns and frames arrive in order."""
    one, two = await pair(new_store, settings=QUICK._replace(batch_bytes=1000))
    for number in range(3000):
        one.peers.send("store-2", small(number))
        if number % 100 == 0:
            await asyncio.sleep(0)
    got = [(await two.handler.messages.get())[1].group for _ in range(3000)]
    assert got == list(range(3000))


async def test_one_connection_per_pair(new_store: NewStore, new_proxy: NewProxy) -> None:
    """Three stores make three connections, each dialled by the store whose name sorts first."""
    stores = [await new_store(f"store-{number}") for number in (1, 2, 3)]
    proxies = {store.name: await new_proxy(store.port) for store in stores}
    introduce(*stores, **{name: proxy.port for name, proxy in proxies.items()})
    for store in stores:
        assert {await store.handler.up.get(), await store.handler.up.get()} == {
            other.name for other in stores if other is not store
        }
    assert [proxy.connections for proxy in proxies.values()] == [0, 1, 2]


async def test_restarted_peer_is_found_again(new_store: NewStore) -> None:
    """A peer that restarts at the same port is reconnected; messages sent in between are counted."""
    one, two = await pair(new_store)
    await two.peers.close()
    assert await one.handler.down.get() == "store-2"
    one.peers.send("store-2", small(1))
    assert one.peers.undelivered == {"disconnected": 1}
    assert one.peers.last_received_at("store-2") is None
    again = await new_store("store-2", port=two.port)
    introduce(one, again)
    assert await one.handler.up.get() == "store-2"
    one.peers.send("store-2", small(2))
    assert await again.handler.messages.get() == ("store-1", small(2))


async def test_restarted_dialler_comes_back(new_store: NewStore) -> None:
    """When the dialling store restarts, the other one accepts its new connection."""
    one, two = await pair(new_store)
    await one.peers.close()
    assert await two.handler.down.get() == "store-1"
    again = await new_store("store-1")
    introduce(again, two)
    assert await two.handler.up.get() == "store-1"
    assert two.peers.connected("store-1")


async def test_new_connection_replaces_a_dead_one(new_store: NewStore, new_proxy: NewProxy) -> None:
    """A new connection replaces one that died unnoticed, and the old one is dropped."""
    two = await new_store("store-2")
    two.peers.set_peers({"store-1": Address(HOST, 1, "vol-1")})
    hello = ["hello", VERSION, "c", "store-1", "vol-1", "store-2", "raft"]
    first, second = await Raw.connect(two.port), await Raw.connect(two.port)
    for raw in (first, second):
        raw.say(hello)
        assert (await raw.receive())[0] == "hello"
    await first.ended()
    assert [await two.handler.up.get(), await two.handler.down.get(), await two.handler.up.get()] == ["store-1"] * 3
    assert two.peers.drops == {Reason.REPLACED: 1}
    two.peers.send("store-1", small(5))
    assert await second.receive_next() == ["batch", [[11, 5, 0, 1, 2, 3, 4]]]
    await first.close()
    await second.close()


async def test_messages_for_a_lost_connection_are_dropped(new_store: NewStore) -> None:
    """Messages that waited for a lost connection are not sent on the next one."""
    two = await new_store("store-2", settings=QUICK._replace(notice_seconds=1000.0))
    two.peers.set_peers({"store-1": Address(HOST, 1, "vol-1")})
    hello = ["hello", VERSION, "c", "store-1", "vol-1", "store-2", "raft"]
    first, second = await Raw.connect(two.port), await Raw.connect(two.port)
    first.say(hello)
    assert (await first.receive())[0] == "hello"
    two.peers.send("store-1", raft.CommitNotice(7, 0, 2, 1, 3, 9))
    second.say(hello)
    assert (await second.receive())[0] == "hello"
    assert two.peers.undelivered == {"disconnected": 1}
    two.peers.send("store-1", small(5))
    assert await second.receive_next() == ["batch", [[11, 5, 0, 1, 2, 3, 4]]]
    await first.close()
    await second.close()


async def test_changed_volume_is_another_peer(new_store: NewStore) -> None:
    """A peer whose volume changed is disconnected, and refused until its volume matches."""
    one, two = await pair(new_store)
    one.peers.set_peers({"store-2": two.address._replace(volume="vol-new")})
    assert await two.handler.down.get() == "store-1"
    await turns(lambda: one.peers.drops[Reason.VOLUME] >= 2)
    assert "vol-new" in one.peers.refusals["store-2"]
    assert not one.peers.connected("store-2")
    introduce(one, two)
    await turns(lambda: one.peers.connected("store-2"))
    assert not one.peers.refusals


async def test_removed_peer_is_disconnected(new_store: NewStore) -> None:
    """A store that is no longer a peer is disconnected, and messages for it are counted."""
    one, two = await pair(new_store)
    two.peers.set_peers({})
    assert await one.handler.down.get() == "store-2"
    await turns(lambda: two.peers.drops[Reason.UNKNOWN_PEER] >= 2)
    two.peers.send("store-1", small(1))
    assert two.peers.undelivered == {"unknown-peer": 1}


@pytest.mark.parametrize("dialled", [False, True])
async def test_links_end_when_the_version_rises(
    new_store: NewStore, monkeypatch: pytest.MonkeyPatch, dialled: bool
) -> None:
    """A store that does not support the new cluster version is disconnected, at either end; others stay."""
    with monkeypatch.context() as patch:
        patch.setattr("evenkeel_raft.net.peer_handshake.SUPPORTED", VersionRange())
        one, two = await pair(new_store)
    three = await new_store("store-3")
    introduce(one, two, three)
    store, other = (one, two) if dialled else (two, one)
    assert await store.handler.up.get() == "store-3"
    store.peers.set_version(2)
    assert await store.handler.down.get() == other.name
    assert store.peers.drops == {Reason.VERSION: 1}
    assert store.peers.connected("store-3")
    assert await store.handler.up.get() == other.name, "a store that supports the version reconnects"


@pytest.mark.parametrize(
    ("hello", "reason"),
    [
        (["hello", VERSION + 1, "c", "store-1", "vol-1", "store-2", "raft"], Reason.VERSION),
        (["hello", VERSION, "other", "store-1", "vol-1", "store-2", "raft"], Reason.CLUSTER),
        (["hello", VERSION, "c", "store-9", "vol-1", "store-2", "raft"], Reason.UNKNOWN_PEER),
        (["hello", VERSION, "c", "store-1", "vol-9", "store-2", "raft"], Reason.VOLUME),
        (["hello", VERSION, "c", "store-1", "vol-1", "store-3", "raft"], Reason.MISDIRECTED),
        (["hello", VERSION, "c", "store-1", "vol-1", "store-2", "dance"], Reason.UNKNOWN_KIND),
    ],
    ids=lambda value: str(value) if isinstance(value, Reason) else "",
)
async def test_wrong_hello_is_refused(new_store: NewStore, hello: list[object], reason: Reason) -> None:
    """A wrong hello is answered with its reason, counted under it, and the connection is closed."""
    two = await new_store("store-2")
    two.peers.set_peers({"store-1": Address(HOST, 1, "vol-1")})
    raw = await Raw.connect(two.port)
    raw.say(hello)
    refused = await raw.receive()
    assert refused[:2] == ["refused", str(reason)]
    await raw.ended()
    await raw.close()
    assert two.peers.drops == {reason: 1}
    assert two.handler.up.empty()


async def test_half_open_peer_is_dropped(new_store: NewStore, new_proxy: NewProxy) -> None:
    """After three silent seconds both ends drop the link; it reconnects when packets pass again."""
    clock = VirtualClock()
    one, two = await new_store("store-1", clock=clock), await new_store("store-2", clock=clock)
    proxy = await new_proxy(two.port)
    introduce(one, two, **{"store-2": proxy.port})
    await turns(lambda: one.peers.connected("store-2") and two.peers.connected("store-1"), clock)
    proxy.flowing.clear()
    since = clock.now()
    await turns(lambda: not one.handler.down.empty() and not two.handler.down.empty(), clock, step=0.05)
    assert 2.9 <= clock.now() - since <= 4.2
    assert one.peers.drops[Reason.SILENT] >= 1
    assert two.peers.drops[Reason.SILENT] >= 1
    proxy.flowing.set()
    await turns(lambda: one.peers.connected("store-2") and two.peers.connected("store-1"), clock)


async def test_idle_link_stays(new_store: NewStore) -> None:
    """An idle link stays connected."""
    clock = VirtualClock()
    one, two = await new_store("store-1", clock=clock), await new_store("store-2", clock=clock)
    introduce(one, two)
    await turns(lambda: one.peers.connected("store-2") and two.peers.connected("store-1"), clock)
    for _ in range(60):
        received = one.peers.last_received_at("store-2")
        assert received is not None
        await turns(lambda since=received: (one.peers.last_received_at("store-2") or 0.0) > since, clock, step=0.02)  # type: ignore[misc]
    assert clock.now() > 30
    assert not one.peers.drops
    assert not two.peers.drops


async def test_slow_reader_never_stops_the_sender(new_store: NewStore, new_proxy: NewProxy) -> None:
    """For a peer that does not read, entries are dropped and counted, memory is bounded, others are unaffected."""
    one = await new_store("store-1", settings=QUICK._replace(outbox_bytes=1 << 20))
    two, three = await new_store("store-2"), await new_store("store-3")
    proxy = await new_proxy(two.port)
    introduce(one, two, three, **{"store-2": proxy.port})
    assert {await one.handler.up.get(), await one.handler.up.get()} == {"store-2", "store-3"}
    proxy.flowing.clear()
    entry = Entry(1, 1, NORMAL, bytes(100_000))
    for number in range(1000):
        one.peers.send("store-2", raft.Append(number, 0, 1, 2, 3, 0, 0, 0, [entry]))
        await asyncio.sleep(0)
    dropped = one.peers.undelivered["full"]
    assert dropped > 100
    one.peers.send("store-3", small(1))
    assert await three.handler.messages.get() == ("store-1", small(1))
    proxy.flowing.set()
    groups = [(await two.handler.messages.get())[1].group for _ in range(1000 - dropped)]
    assert groups == sorted(groups)
    assert two.handler.messages.empty()


async def test_unreachable_peer_is_retried_with_backoff(new_store: NewStore) -> None:
    """An unreachable peer is retried with backoff, and the reason is available."""
    clock = VirtualClock()
    one = await new_store("store-1", clock=clock)
    gone = await new_store("store-2", clock=clock)
    await gone.peers.close()
    introduce(one, gone)
    await turns(lambda: "store-2" in one.peers.refusals)
    assert str(gone.port) in one.peers.refusals["store-2"]


async def test_port_in_use_is_reported(new_store: NewStore) -> None:
    """The error names a port that is in use."""
    one = await new_store("store-1")
    with pytest.raises(Exception, match=f"cannot listen for peers on 127.0.0.1:{one.port}"):
        await new_store("store-2", port=one.port)


@pytest.mark.parametrize(("host", "port"), [("a..b", 7400), ("x" * 70, 7400), ("", 7400), (HOST, 70_000), (HOST, -1)])
async def test_an_invalid_address_can_be_corrected(new_store: NewStore, host: str, port: int) -> None:
    """The reason for an invalid peer address is available; a corrected address connects."""
    one, two = await new_store("store-1"), await new_store("store-2")
    introduce(one, two)
    one.peers.set_peers({"store-2": Address(host, port, "another")})
    one.peers.set_peers({"store-2": Address(host, port, two.me.volume)})
    await turns(lambda: "store-2" in one.peers.refusals)
    introduce(one, two)
    assert await one.handler.up.get() == "store-2"
