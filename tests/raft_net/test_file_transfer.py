"""Snapshot transfers between stores: complete, verified, resumable and within the rate limit."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from evenkeel.errors import InvalidInputError
from evenkeel.runtime.clock import VirtualClock
from evenkeel.wire.framing import Reason
from evenkeel_raft.core.raft_messages import InstallSnapshot, ReadRequest
from evenkeel_raft.core.raft_types import Conf, SnapshotMeta
from evenkeel_raft.net.files.file_sender import Outcome, Sent
from evenkeel_raft.net.files.partial_snapshot import Partial
from evenkeel_raft.net.files.snapshot_manifest import Manifest, make_manifest
from evenkeel_raft.net.peer_frames import VERSION
from evenkeel_raft.shared.identity import Address
from tests.raft_net.support import HOST, QUICK, Proxy, Raw, Store, introduce, turns

NewStore = Callable[..., Awaitable[Store]]
NewProxy = Callable[[int], Awaitable[Proxy]]
CHUNK = 16 << 10
STORED = Sent(Outcome.STORED)


def install(group: int = 7, index: int = 9) -> InstallSnapshot:
    return InstallSnapshot(group, 0, 1, 2, 3, SnapshotMeta(index, 3, Conf((1, 2))))


def repair(index: int = 9, term: int = 3) -> InstallSnapshot:
    """Return the message for a snapshot that a member sends to its leader."""
    return InstallSnapshot(7, 0, 1, 2, term, SnapshotMeta(index, 3, Conf((1, 2))), True)


class Source:
    """A snapshot to send."""

    def __init__(self, directory: Path, seed: int = 0, sizes: tuple[int, ...] = (300_000, 0, 10, 5 * CHUNK)) -> None:
        rng = random.Random(seed)
        self.directory = directory
        (directory / "sub").mkdir(parents=True)
        self.names = [f"sub/{number}" if number % 2 else f"{number}" for number in range(len(sizes))]
        for name, size in zip(self.names, sizes, strict=True):
            (directory / name).write_bytes(rng.randbytes(size))
        self.manifest: Manifest = make_manifest(directory, self.names, chunk_bytes=CHUNK)

    def send(self, store: Store, to: str, *, message: InstallSnapshot | None = None, **more: Any) -> asyncio.Task[Sent]:
        return asyncio.create_task(
            store.peers.send_snapshot(
                to, message=message or install(), manifest=self.manifest, directory=self.directory, **more
            )
        )

    def assert_equals(self, directory: Path) -> None:
        found = sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())
        assert found == sorted(self.names)
        for name in self.names:
            assert (directory / name).read_bytes() == (self.directory / name).read_bytes()


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return Source(tmp_path / "source")


@pytest.fixture
async def stores(new_store: NewStore) -> tuple[Store, Store]:
    one, two = await new_store("store-1"), await new_store("store-2")
    introduce(one, two)
    return one, two


def partials(store: Store) -> list[str]:
    return sorted(path.name for path in store.inbox.iterdir() if path.name.endswith(".partial"))


@pytest.mark.parametrize("forth", [True, False])
async def test_snapshot_arrives(stores: tuple[Store, Store], source: Source, forth: bool) -> None:
    """Files, message and manifest arrive together in either direction, and progress is reported."""
    sender, receiver = stores if forth else stores[::-1]
    progress: list[int] = []
    assert await source.send(sender, receiver.name, progress=progress.append) == STORED
    store, message, directory, manifest = receiver.handler.snapshots.get_nowait()
    assert (store, message, manifest) == (sender.name, install(), source.manifest)
    source.assert_equals(directory)
    assert progress == sorted(progress)
    assert (progress[0], progress[-1]) == (0, source.manifest.size)
    assert partials(receiver) == []


async def test_throughput_is_measured(stores: tuple[Store, Store], source: Source) -> None:
    """Received bytes and transfer seconds are counted, and only during a transfer."""
    one, two = stores
    assert (two.peers.received.bytes, two.peers.received.seconds) == (0, 0.0)
    await source.send(one, "store-2")
    meter = two.peers.received
    assert meter.bytes == source.manifest.size
    seconds = meter.seconds
    assert 0.0 < seconds < 60.0
    await asyncio.sleep(0)
    assert (meter.seconds, one.peers.received.bytes) == (seconds, 0)


async def test_many_at_once(stores: tuple[Store, Store], tmp_path: Path) -> None:
    """Concurrent snapshots of many groups in both directions do not mix."""
    sources = [Source(tmp_path / f"source-{number}", seed=number) for number in range(8)]
    sending = [
        source.send(stores[number % 2], stores[1 - number % 2].name, message=install(group=number))
        for number, source in enumerate(sources)
    ]
    assert await asyncio.gather(*sending) == [STORED] * 8
    for store in stores:
        while not store.handler.snapshots.empty():
            _, message, directory, _ = store.handler.snapshots.get_nowait()
            sources[message.group].assert_equals(directory)


async def test_resumed_after_cuts_and_flips(new_store: NewStore, new_proxy: NewProxy, tmp_path: Path) -> None:
    """After any number of cuts and flipped bytes, the files arrive intact."""
    source = Source(tmp_path / "source", sizes=(1_000_000, 300_000, 7))
    rng = random.Random(1)
    one, two = await new_store("store-1"), await new_store("store-2")
    proxy = await new_proxy(two.port)
    size = source.manifest.size
    proxy.cut_at = [rng.randrange(size) for _ in range(25)]
    proxy.flip_at = [rng.randrange(proxy.cut_at[number]) if number % 2 else size for number in range(25)]
    introduce(one, two, **{"store-2": proxy.port})
    assert await source.send(one, "store-2") == STORED
    source.assert_equals(two.handler.snapshots.get_nowait()[2])
    assert proxy.connections > 2


async def test_resumes_at_the_verified_offset(new_store: NewStore, new_proxy: NewProxy, tmp_path: Path) -> None:
    """After a cut, at most one chunk is sent again."""
    source = Source(tmp_path / "source", sizes=(64 * CHUNK,))
    one, two = await new_store("store-1"), await new_store("store-2")
    one.peers.set_peers({})
    proxy = await new_proxy(two.port)
    # The first connection through the proxy is the raft link.
    proxy.cut_at = [1 << 60, *[8 * CHUNK + 5000] * 4]
    introduce(one, two, **{"store-2": proxy.port})
    await one.handler.up.get()
    before = proxy.passed
    assert await source.send(one, "store-2") == STORED
    sent_again = proxy.passed - before - source.manifest.size
    source.assert_equals(two.handler.snapshots.get_nowait()[2])
    assert 4 <= proxy.connections - 1 <= 9
    assert sent_again < proxy.connections * (CHUNK + 8000)


async def test_receiver_restarts(new_store: NewStore, new_proxy: NewProxy, tmp_path: Path) -> None:
    """A restarted receiver resumes from its disk, and a torn tail is sent again."""
    source = Source(tmp_path / "source", sizes=(64 * CHUNK,))
    one, two = await new_store("store-1"), await new_store("store-2")
    proxy = await new_proxy(two.port)
    proxy.cut_at = [40 * CHUNK, 40 * CHUNK]
    introduce(one, two, **{"store-2": proxy.port})
    progress: list[int] = []
    sending = source.send(one, "store-2", progress=progress.append)
    await turns(lambda: proxy.connections >= 2 and bool(partials(two)))
    await two.peers.close()
    (partial,) = partials(two)
    file = two.inbox / partial / source.names[0]
    kept = file.stat().st_size
    with file.open("r+b") as opened:
        opened.seek(kept // 2)
        opened.write(b"torn")
    progress.clear()
    again = await new_store("store-2", port=two.port)
    introduce(one, again, **{"store-2": proxy.port})
    assert await sending == STORED
    source.assert_equals(again.handler.snapshots.get_nowait()[2])
    if kept:
        assert kept // 2 - CHUNK <= min(progress) <= kept // 2


async def test_lost_report_is_repeated(new_store: NewStore, source: Source) -> None:
    """A snapshot that was already stored is confirmed again without sending data, also after a restart."""
    one, two = await new_store("store-1"), await new_store("store-2")
    introduce(one, two)
    assert await source.send(one, "store-2") == STORED
    await two.peers.close()
    again = await new_store("store-2", port=two.port)
    introduce(one, again)
    progress: list[int] = []
    assert await source.send(one, "store-2", progress=progress.append) == STORED
    assert progress == []
    source.assert_equals(again.handler.snapshots.get_nowait()[2])


async def test_unwanted_snapshot(stores: tuple[Store, Store], source: Source) -> None:
    """A receiver that declines a snapshot gives its reason and keeps nothing."""
    stores[1].handler.unwanted = "replica 2 of group 7 is not here"
    assert await source.send(stores[0], "store-2") == Sent(Outcome.DECLINED, "replica 2 of group 7 is not here")
    assert list(stores[1].inbox.iterdir()) == []


async def test_full_disk_is_reported(
    stores: tuple[Store, Store], source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A receiver with a full disk declines with the reason; the partial snapshot is used by the next attempt."""
    write = Partial.write
    writes = iter(range(1000))

    def full(self: Partial, *chunk: Any) -> bool:
        if next(writes) == 5:
            raise OSError(28, "No space left on device")
        return write(self, *chunk)

    monkeypatch.setattr(Partial, "write", full)
    sent = await source.send(stores[0], "store-2")
    assert sent.outcome is Outcome.DECLINED
    assert "No space left" in sent.detail
    assert len(partials(stores[1])) == 1
    assert await source.send(stores[0], "store-2") == STORED


async def test_failed_sync_discards_what_arrived(
    stores: tuple[Store, Store], source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failed sync, the next attempt starts from the beginning."""
    fsync = os.fsync
    syncs = iter(range(1000))

    def broken(descriptor: int) -> None:
        if next(syncs) == 2:
            raise OSError(5, "Input/output error")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", broken)
    sent = await source.send(stores[0], "store-2")
    assert sent.outcome is Outcome.DECLINED
    assert "Input/output error" in sent.detail
    progress: list[int] = []
    assert await source.send(stores[0], "store-2", progress=progress.append) == STORED
    assert progress[0] == 0
    source.assert_equals(stores[1].handler.snapshots.get_nowait()[2])


async def test_inbox_that_cannot_be_made(tmp_path: Path) -> None:
    """An unusable inbox is named at startup."""
    (tmp_path / "store-1").write_text("in the way")
    with pytest.raises(InvalidInputError, match=r"cannot create snapshot directory .*store-1"):
        Store("store-1", tmp_path)


@pytest.mark.parametrize("harm", ["changed", "cut", "gone"])
async def test_damaged_source(stores: tuple[Store, Store], source: Source, harm: str) -> None:
    """A source file that changed ends the transfer and is named; the receiver keeps nothing."""
    file = source.directory / source.names[0]
    match harm:
        case "changed":
            data = bytearray(file.read_bytes())
            data[5 * CHUNK + 7] ^= 1
            file.write_bytes(data)
        case "cut":
            os.truncate(file, 1000)
        case "gone":
            file.unlink()
    sent = await source.send(stores[0], "store-2")
    assert sent.outcome is Outcome.DAMAGED
    assert str(file) in sent.detail
    assert stores[1].handler.snapshots.empty()


async def test_sender_cancels(new_store: NewStore, source: Source) -> None:
    """A cancelled transfer leaves nothing at the receiver."""
    one, two = await new_store("store-1"), await new_store("store-2", rate=1.0)
    introduce(one, two)
    sending = source.send(one, "store-2")
    await turns(lambda: bool(partials(two)) and bool(two.peers._receiver.partials))
    sending.cancel()
    two.peers.budget.set_rate(None)
    await turns(lambda: not two.peers._receiver.incoming)
    assert sending.cancelled()
    assert list(two.inbox.iterdir()) == []


async def test_receiver_cancels(new_store: NewStore, source: Source) -> None:
    """A receiver that cancels informs the sender and deletes the partial snapshot; others are unaffected."""
    one, two = await new_store("store-1", rate=100_000.0), await new_store("store-2")
    introduce(one, two)
    sending, other = source.send(one, "store-2"), source.send(one, "store-2", message=install(group=8))
    await turns(lambda: len(two.peers._receiver.partials) == 2)
    await two.peers.cancel_snapshot(7, 2)
    assert await sending == Sent(Outcome.DECLINED, "cancelled")
    assert [name.split("-")[0] for name in partials(two)] == ["8"]
    one.peers.budget.set_rate(None)
    assert await other == STORED


async def test_newer_snapshot_supersedes(new_store: NewStore, tmp_path: Path) -> None:
    """A newer snapshot for the same replica supersedes the older one, in either order."""
    older, newer = Source(tmp_path / "older"), Source(tmp_path / "newer", seed=1)
    one, two = await new_store("store-1", rate=100_000.0), await new_store("store-2")
    three = await new_store("store-3")
    introduce(one, two, three)
    first = older.send(one, "store-2")
    await turns(lambda: len(two.peers._receiver.partials) == 1)
    three.peers.budget.set_rate(100_000.0)
    second = newer.send(three, "store-2", message=install(index=12))
    superseded = Sent(Outcome.DECLINED, "superseded by a newer snapshot")
    assert await first == superseded
    await turns(lambda: bool(two.peers._receiver.incoming))
    assert await older.send(one, "store-2") == superseded
    three.peers.budget.set_rate(None)
    assert await second == STORED
    _, message, directory, _ = two.handler.snapshots.get_nowait()
    assert message.meta.index == 12
    newer.assert_equals(directory)
    assert partials(two) == []


@pytest.mark.parametrize("index", [9, 12], ids=["same index", "later index"])
async def test_a_second_members_snapshot_does_not_replace_the_first(
    new_store: NewStore, tmp_path: Path, index: int
) -> None:
    """A leader that lost its state receives one member's snapshot to its end; other members' are declined."""
    first, second = Source(tmp_path / "first"), Source(tmp_path / "second", seed=1)
    one, two = await new_store("store-1", rate=100_000.0), await new_store("store-2")
    three = await new_store("store-3")
    introduce(one, two, three)
    sending = first.send(one, "store-2", message=repair())
    await turns(lambda: two.peers.receiving(7, 2, term=3))
    taken = Sent(Outcome.DECLINED, "already receiving another member's snapshot")
    assert await second.send(three, "store-2", message=repair(index=index)) == taken
    assert not sending.done()
    assert not two.peers.receiving(7, 2, term=4)
    one.peers.budget.set_rate(None)
    assert await sending == STORED
    assert two.peers.drops == {}
    assert not two.peers.receiving(7, 2, term=3)


async def test_a_members_snapshot_of_a_new_term_replaces_the_one_before(new_store: NewStore, tmp_path: Path) -> None:
    """A repair snapshot of a newer term replaces that of an older term."""
    first, second = Source(tmp_path / "first"), Source(tmp_path / "second", seed=1)
    one, two = await new_store("store-1", rate=100_000.0), await new_store("store-2")
    three = await new_store("store-3")
    introduce(one, two, three)
    sending = first.send(one, "store-2", message=repair())
    await turns(lambda: two.peers.receiving(7, 2, term=3))
    assert await second.send(three, "store-2", message=repair(term=4)) == STORED
    assert await sending == Sent(Outcome.DECLINED, "superseded by a newer snapshot")


async def test_the_same_snapshot_offered_again_takes_over(new_store: NewStore, source: Source) -> None:
    """The same snapshot offered again replaces the previous connection."""
    two = await new_store("store-2")
    two.peers.set_peers({"store-1": Address(HOST, 1, "vol-1")})
    file = source.manifest.files[0]
    manifest = [CHUNK, [[file.name, file.size, file.sum, file.chunks]]]
    offer = ["offer", [8, 7, 0, 1, 2, 3, [9, 3, [[1, 2], [], [], [], 0, False, {}]]], manifest]
    first, second = await Raw.connect(two.port), await Raw.connect(two.port)
    for raw in (first, second):
        raw.say(["hello", VERSION, "c", "store-1", "vol-1", "store-2", "files"], offer)
        assert (await raw.receive())[0] == "hello"
        assert await raw.receive() == ["resume", [0]]
    await first.ended()
    assert two.peers.drops == {Reason.REPLACED: 1}
    await first.close()
    await second.close()


async def test_sweep_deletes_partials_of_removed_replicas(stores: tuple[Store, Store]) -> None:
    """A sweep deletes partial snapshots of removed replicas and nothing else."""
    two = stores[1]
    for name in ("7-2-0-9-3-x.partial", "8-2-0-9-3-x.partial", "8-2-0-9-3-x", "lost+found"):
        (two.inbox / name).mkdir()
    await two.peers.sweep_snapshots(lambda group, replica: (group, replica) == (7, 2))
    assert sorted(path.name for path in two.inbox.iterdir()) == ["7-2-0-9-3-x.partial", "8-2-0-9-3-x", "lost+found"]


async def test_frames_out_of_place(new_store: NewStore, source: Source) -> None:
    """Chunks out of order and an early end close the connection and have no other effect."""
    one, two = await new_store("store-1"), await new_store("store-2")
    introduce(one, two)
    file = source.manifest.files[0]
    manifest = [CHUNK, [[file.name, file.size, file.sum, file.chunks]]]
    offer = ["offer", [8, 7, 0, 1, 2, 3, [9, 3, [[1, 2], [], [], [], 0, False, {}]]], manifest]
    data = (source.directory / file.name).read_bytes()
    wrong = [
        ["chunk", 0, CHUNK, data[:CHUNK]],
        ["chunk", 1, 0, data[:CHUNK]],
        ["chunk", 0, 0, b""],
        ["finished"],
        offer,
    ]
    for times, frame in enumerate(wrong, start=1):
        raw = await Raw.connect(two.port)
        raw.say(["hello", VERSION, "c", "store-1", "vol-store-1", "store-2", "files"])
        await raw.receive()
        raw.say(offer)
        assert await raw.receive() == ["resume", [0]]
        raw.say(frame)
        await raw.ended()
        await raw.close()
        await turns(lambda times=times: two.peers.drops[Reason.UNEXPECTED] == times)  # type: ignore[misc]
    assert await source.send(one, "store-2") == STORED
    assert two.peers.drops == {Reason.UNEXPECTED: len(wrong)}


async def test_budget_holds_for_senders_and_receivers(new_store: NewStore, tmp_path: Path) -> None:
    """A megabyte at 100 kB per second takes ten seconds, whichever end has the limit."""
    for place, (send_rate, receive_rate) in enumerate([(100_000.0, None), (None, 100_000.0)]):
        clock = VirtualClock()
        source = Source(tmp_path / f"source-{place}", sizes=(1_000_000,))
        one = await new_store(f"a-{place}", clock=clock, rate=send_rate)
        two = await new_store(f"b-{place}", clock=clock, rate=receive_rate)
        introduce(one, two)
        sending = source.send(one, two.name)
        await turns(sending.done, clock, step=0.002)
        assert await sending == STORED
        assert clock.now() >= 9.5
        assert not two.peers.drops


async def test_limits_of_tables_hold_for_senders_and_receivers(new_store: NewStore, tmp_path: Path) -> None:
    """A table's limit applies at either end to this table only, and ends when it is removed."""
    for limited in (0, 1):
        clock = VirtualClock()
        source = Source(tmp_path / f"source-{limited}", sizes=(1_000_000,))
        tables = {install().group: "orders.1"}
        stores = [await new_store(f"{end}-{limited}", clock=clock, table_of=tables.__getitem__) for end in "ab"]
        introduce(*stores)
        stores[limited].peers.tables.set_limits({"orders.1": 100_000.0, "others.1": 1.0})
        sending = source.send(stores[0], stores[1].name)
        await turns(lambda: clock.now() >= 5.0, clock, step=0.002)  # noqa: B023 - used at once
        assert not sending.done()
        stores[limited].peers.tables.set_limits({"others.1": 1.0})
        await turns(sending.done)
        assert await sending == STORED


async def test_raft_comes_first(new_store: NewStore, tmp_path: Path) -> None:
    """While raft uses up the budget, a snapshot gets a tenth of it, and messages still pass."""
    clock = VirtualClock()
    source = Source(tmp_path / "source", sizes=(1_000_000,))
    one, two = await new_store("store-1", clock=clock, rate=1_000_000.0), await new_store("store-2", clock=clock)
    introduce(one, two)
    await turns(lambda: one.peers.connected("store-2"), clock)
    progress: list[int] = []
    one.peers.budget.charge(10_000_000)
    sending = source.send(one, "store-2", progress=progress.append)
    await turns(lambda: len(progress) > 2, clock, step=0.001)
    start, begin = clock.now(), progress[-1]
    while clock.now() < start + 1.0:
        one.peers.budget.charge(2_000)
        one.peers.send("store-2", ReadRequest(1, 0, 1, 2, 3, 4))
        assert await two.handler.messages.get()
        clock.advance(0.002)
    assert progress[-1] - begin <= 150_000
    await turns(sending.done, clock, step=0.002)
    assert await sending == STORED


async def test_silent_receiver_is_dropped(new_store: NewStore, new_proxy: NewProxy, source: Source) -> None:
    """A transfer that stalls is dropped at both ends and resumes when packets pass again."""
    clock = VirtualClock()
    one, two = await new_store("store-1", clock=clock), await new_store("store-2", clock=clock)
    proxy = await new_proxy(two.port)
    introduce(one, two, **{"store-2": proxy.port})
    await turns(lambda: one.peers.connected("store-2"), clock)
    proxy.flowing.clear()
    sending = source.send(one, "store-2")
    await turns(lambda: one.peers.drops[Reason.SILENT] >= 2, clock, step=0.02)
    proxy.flowing.set()
    await turns(sending.done, clock, step=0.002)
    assert await sending == STORED


async def test_large_snapshot_uses_little_memory(new_store: NewStore, tmp_path: Path) -> None:
    """A slow receiver makes the sender wait instead of buffering chunks."""
    source = Source(tmp_path / "source", sizes=(48 << 20,))
    settings = QUICK._replace(alive_seconds=60.0, silent_seconds=600.0)
    one = await new_store("store-1", settings=settings)
    two = await new_store("store-2", settings=settings, rate=1.0)
    introduce(one, two)
    progress: list[int] = []
    sending = source.send(one, "store-2", progress=progress.append)
    seen = -1
    while not progress or progress[-1] > seen:
        seen = progress[-1] if progress else -1
        for _ in range(50):
            await asyncio.to_thread(int)
    assert seen < 40 << 20
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
