"""`StoreSocket` and `SidecarSocket` connected to each other."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from evenkeel.errors import DisconnectedError, HandshakeError, InvalidInputError, StateMachineError
from evenkeel.runtime.clock import VirtualClock
from evenkeel.versions import SUPPORTED
from evenkeel.wire import socket_messages as m
from evenkeel.wire import unix_paths
from evenkeel.wire.framing import Reason
from evenkeel.wire.sidecar_socket import SidecarSocket
from evenkeel.wire.store_socket import StoreSocket
from tests.wire.support import FakeMachine, NoJitter, Raw, Sidecar, wait_until

Connect = Callable[..., tuple[StoreSocket, asyncio.Task[None]]]


async def test_hellos_carry_volume_and_credit(
    listening: SidecarSocket, sidecar: Sidecar, machine: FakeMachine, connect: Connect
) -> None:
    """Each end knows the other's volume and credit after one frame."""
    connect(machine, volume="", credit=77)
    assert await sidecar.hello.get() == m.Hello(m.VERSION, "", 77, supported=SUPPORTED)
    assert await machine.volume.get() == "vol-1"
    assert listening.connected


async def test_send_buffers_are_enlarged(
    listening: SidecarSocket, sidecar: Sidecar, machine: FakeMachine, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ends enlarge their send buffers, so that they do not wake up for every entry."""
    gained: list[int] = []

    def enlarge(unix: Any) -> None:
        default = unix.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        unix_paths.enlarge_send_buffer(unix)
        gained.append(unix.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) - default)

    monkeypatch.setattr("evenkeel.wire.sidecar_socket.enlarge_send_buffer", enlarge)
    monkeypatch.setattr("evenkeel.wire.store_socket.enlarge_send_buffer", enlarge)
    connect(machine)
    await sidecar.hello.get()
    assert len(gained) == 2
    assert min(gained) > 0


async def test_requests_of_the_sidecar(
    listening: SidecarSocket, sidecar: Sidecar, machine: FakeMachine, connect: Connect, tmp_path: Path
) -> None:
    """Each request reaches the state machine with group and replica, and its answer reaches the sidecar."""
    connect(machine)
    await sidecar.hello.get()
    entries = [m.LoggedEntry(6, b"x")]
    asked: list[tuple[asyncio.Future[Any], tuple[Any, ...], Any, Any]] = [
        (listening.open(4, 9), ("open", 4, 9), m.Opened(4, "ok"), m.Opened(4, "ok")),
        (
            listening.apply(4, 9, first=5, last=7, entries=entries),
            ("apply", 4, 9, m.Apply(5, 7, entries)),
            m.Applied(7),
            7,
        ),
        (
            listening.snapshot(4, 9, tmp_path),
            ("snapshot", 4, 9, tmp_path),
            m.SnapshotTaken(7, ["a"]),
            m.SnapshotTaken(7, ["a"]),
        ),
        (
            listening.restore(4, 9, tmp_path, index=7),
            ("restore", 4, 9, m.Restore(str(tmp_path), 7)),
            m.Applied(7),
            m.Applied(7),
        ),
        (listening.close_group(4, 9), ("close", 4, 9), m.Done(), m.Done()),
        (listening.destroy(4, 9), ("destroy", 4, 9), m.Done(), m.Done()),
    ]
    arrived = [await machine.asked.get() for _ in asked]
    assert [request[:-1] for request in arrived] == [wanted for _, wanted, _, _ in asked]
    for request, (_, _, body, _) in reversed(list(zip(arrived, asked, strict=True))):
        request[-1](body)
    assert [await future for future, *_ in asked] == [result for *_, result in asked]


async def test_role_reaches_the_store(
    listening: SidecarSocket, sidecar: Sidecar, machine: FakeMachine, connect: Connect
) -> None:
    """A role reaches the state machine without an answer."""
    connect(machine)
    await sidecar.hello.get()
    listening.role(4, 9, leader=False, term=3, hint="store-2")
    assert await machine.asked.get() == ("role", 4, 9, m.Role(False, 3, "store-2"))


@pytest.mark.parametrize(
    "outcome", [m.Committed(6, 2), m.NotLeader("store-2"), m.Unknown(), m.Busy(), m.TooLarge(10)], ids=repr
)
async def test_proposal_has_an_outcome(
    listening: SidecarSocket, sidecar: Sidecar, machine: FakeMachine, connect: Connect, outcome: m.ProposeOutcome
) -> None:
    """The store receives the outcome of its proposal."""
    store, _ = connect(machine)
    await machine.volume.get()
    future = store.propose(4, 9, b"entry")
    group, replica, data, answer = await sidecar.proposals.get()
    answer(outcome)
    assert (group, replica, data) == (4, 9, b"entry")
    assert await future == outcome


async def test_proposals_are_pipelined(
    listening: SidecarSocket, sidecar: Sidecar, machine: FakeMachine, connect: Connect
) -> None:
    """A thousand proposals are pending at once, and answers in any order match them."""
    store, _ = connect(machine)
    await machine.volume.get()
    futures = [store.propose(1, 1, b"%d" % number) for number in range(1000)]
    waiting = [await sidecar.proposals.get() for _ in futures]
    for _, _, data, answer in reversed(waiting):
        answer(m.Committed(int(data), 1))
    assert [await future for future in futures] == [m.Committed(number, 1) for number in range(1000)]


async def test_reads_and_drain(
    listening: SidecarSocket, sidecar: Sidecar, machine: FakeMachine, connect: Connect
) -> None:
    """A read receives its index, a drain the number of leaderships that were not handed over."""
    store, _ = connect(machine)
    await machine.volume.get()
    read, drain = store.read_index(4, 9), store.drain()
    (await sidecar.reads.get())[2](m.ReadAt(12))
    (await sidecar.drains.get())(m.Drained(1))
    assert (await read, await drain) == (m.ReadAt(12), m.Drained(1))


async def test_doubts(listening: SidecarSocket, sidecar: Sidecar, machine: FakeMachine, connect: Connect) -> None:
    """Doubts arrive in order and are not answered; without a sidecar they are lost."""
    store, _ = connect(machine)
    store.doubt(4, 9, "lost")
    await machine.volume.get()
    store.doubt(4, 9, "it differs", unfit=True)
    store.doubt(4, 9, "")
    assert await sidecar.doubts.get() == (4, 9, m.Doubt("it differs", True))
    assert await sidecar.doubts.get() == (4, 9, m.Doubt(""))


async def test_sizes(listening: SidecarSocket, sidecar: Sidecar, machine: FakeMachine, connect: Connect) -> None:
    """Sizes arrive in order and are not answered; without a sidecar they are lost."""
    store, _ = connect(machine)
    store.size(4, 9, 1)
    await machine.volume.get()
    store.size(4, 9, 5000)
    assert await sidecar.sizes.get() == (4, 9, 5000)


async def test_an_older_sidecar_gets_no_sizes(
    listening: SidecarSocket,
    sidecar: Sidecar,
    machine: FakeMachine,
    connect: Connect,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An older sidecar does not know `Size` and would close the connection."""
    send: Callable[..., None] = listening._store.send

    def send_as_older(*arguments: Any) -> None:
        *address, body = arguments
        send(*address, m.Hello(body.version, body.volume) if isinstance(body, m.Hello) else body)

    monkeypatch.setattr(listening._store, "send", send_as_older)
    store, _ = connect(machine)
    await machine.volume.get()
    store.size(4, 9, 5000)
    store.doubt(4, 9, "it differs")
    assert await sidecar.doubts.get() == (4, 9, m.Doubt("it differs"))
    assert sidecar.sizes.empty()


async def test_applies_wait_for_credit(
    listening: SidecarSocket, sidecar: Sidecar, machine: FakeMachine, connect: Connect
) -> None:
    """Unanswered applies stay within the credit; each answer releases the next ones, in order."""
    connect(machine, credit=2500)
    await sidecar.hello.get()
    futures = [
        listening.apply(1, 1, first=index, last=index, entries=[m.LoggedEntry(index, bytes(1000))])
        for index in range(1, 6)
    ]
    asked = [await machine.asked.get() for _ in range(2)]
    listening.role(1, 1, leader=True, term=1)
    assert (await machine.asked.get())[0] == "role"
    assert listening.unapplied_bytes > 5000
    for index in range(1, 6):
        asked.pop(0)[-1](m.Applied(index))
        assert await futures[index - 1] == index
        if index <= 3:
            asked.append(await machine.asked.get())
    assert listening.unapplied_bytes == 0


async def test_apply_larger_than_the_credit_is_sent_alone(
    listening: SidecarSocket, sidecar: Sidecar, machine: FakeMachine, connect: Connect
) -> None:
    """An entry that exceeds the whole credit is applied."""
    connect(machine, credit=10)
    await sidecar.hello.get()
    future = listening.apply(1, 1, first=1, last=1, entries=[m.LoggedEntry(1, bytes(5 << 20))])
    (await machine.asked.get())[-1](m.Applied(1))
    assert await future == 1


@pytest.mark.parametrize("what", ["open", "restore", "destroy", "close"])
async def test_queued_applies_are_cancelled(
    listening: SidecarSocket, sidecar: Sidecar, machine: FakeMachine, connect: Connect, what: str
) -> None:
    """Opening, restoring, closing or destroying a group cancels its applies that wait for credit."""
    connect(machine, credit=10)
    await sidecar.hello.get()
    futures = [
        listening.apply(group, 1, first=index, last=index, entries=[m.LoggedEntry(index, b"x" * 99)])
        for group, index in ((1, 1), (1, 2), (2, 7), (1, 3))
    ]
    asks: dict[str, Callable[[], object]] = {
        "open": partial(listening.open, 1, 1),
        "restore": partial(listening.restore, 1, 1, Path("/x"), index=9),
        "destroy": partial(listening.destroy, 1, 1),
        "close": partial(listening.close_group, 1, 1),
    }
    asks[what]()
    assert [future.cancelled() for future in futures] == [False, True, False, True]
    first = await machine.asked.get()
    assert (await machine.asked.get())[0] == what
    first[-1](m.Applied(1))
    assert (await machine.asked.get())[:2] == ("apply", 2)
    assert listening.unapplied_bytes == 99 + 2 * 16


async def test_failure_has_the_store_s_message(
    listening: SidecarSocket, sidecar: Sidecar, machine: FakeMachine, connect: Connect
) -> None:
    """A failed request raises the store's message, returns its credit, and keeps the connection."""
    connect(machine, credit=10)
    await sidecar.hello.get()
    futures = [listening.apply(1, 1, first=1, last=1, entries=[m.LoggedEntry(1, b"x" * 99)]) for _ in range(2)]
    (await machine.asked.get())[-1](m.Failed("disk full"))
    with pytest.raises(StateMachineError, match="disk full"):
        await futures[0]
    (await machine.asked.get())[-1](m.Applied(0))
    with pytest.raises(StateMachineError, match="asked to apply up to 1, the store answered 0"):
        await futures[1]
    assert listening.connected


async def test_merged_applies_may_answer_ahead(
    listening: SidecarSocket, sidecar: Sidecar, machine: FakeMachine, connect: Connect
) -> None:
    """A store that applied several requests in one transaction may report the last index in the first answer."""
    connect(machine)
    await sidecar.hello.get()
    future = listening.apply(1, 1, first=1, last=1, entries=[])
    (await machine.asked.get())[-1](m.Applied(5))
    assert await future == 5


async def test_requests_without_a_peer(listening: SidecarSocket, tmp_path: Path) -> None:
    """Without a store every request fails at once; without a sidecar a proposal is `NotLeader`."""
    listening.role(1, 1, leader=True, term=1)
    for future in (listening.open(1, 1), listening.apply(1, 1, first=1, last=1, entries=[])):
        with pytest.raises(DisconnectedError, match="no store is connected"):
            await future
    alone = StoreSocket(tmp_path / "none.sock", volume="", state_machine=FakeMachine())
    assert await alone.propose(1, 1, b"x") == m.NotLeader()
    assert await alone.read_index(1, 1) == m.Unavailable()
    assert await alone.drain() == m.Drained()


async def test_too_large_is_not_sent(
    listening: SidecarSocket, sidecar: Sidecar, machine: FakeMachine, connect: Connect
) -> None:
    """The store does not send an entry beyond the limit, which would close the connection; one at the limit is sent."""
    store, _ = connect(machine)
    await machine.volume.get()
    assert await store.propose(1, 1, bytes(m.MAX_ENTRY_BYTES + 1)) == m.TooLarge(m.MAX_ENTRY_BYTES)
    future = store.propose(1, 1, bytes(m.MAX_ENTRY_BYTES))
    _, _, data, answer = await sidecar.proposals.get()
    answer(m.Committed(1, 1))
    assert (len(data), await future) == (m.MAX_ENTRY_BYTES, m.Committed(1, 1))


async def test_busy_past_64_mib(
    listening: SidecarSocket, sidecar: Sidecar, machine: FakeMachine, connect: Connect
) -> None:
    """Unanswered proposals are bounded; answers make room for more."""
    store, _ = connect(machine)
    await machine.volume.get()
    part = bytes(m.MAX_PROPOSED_BYTES // 4)
    futures = [store.propose(1, 1, part) for _ in range(4)]
    assert await store.propose(1, 1, b"x") == m.Busy()
    for _ in futures:
        (await sidecar.proposals.get())[3](m.NotLeader())
    assert set(await asyncio.gather(*futures)) == {m.NotLeader()}
    again = store.propose(1, 1, b"x")
    (await sidecar.proposals.get())[3](m.Committed(1, 1))
    assert await again == m.Committed(1, 1)


async def test_requests_fail_when_the_store_disconnects(
    listening: SidecarSocket, sidecar: Sidecar, machine: FakeMachine, connect: Connect
) -> None:
    """All requests to a store that died fail, whether they were sent or waited for credit."""
    _, task = connect(machine, credit=10)
    await sidecar.hello.get()
    futures: list[asyncio.Future[Any]] = [listening.apply(1, 1, first=1, last=1, entries=[]) for _ in range(3)]
    futures.append(listening.open(2, 1))
    await machine.asked.get()
    task.cancel()
    await sidecar.gone.wait()
    for future in futures:
        with pytest.raises(DisconnectedError):
            await future
    assert listening.unapplied_bytes == 0


async def test_store_reconnects(
    listening: SidecarSocket, sidecar: Sidecar, machine: FakeMachine, connect: Connect, clock: VirtualClock
) -> None:
    """When the sidecar disconnects, proposals are `Unknown`; when it is back, the store reconnects and is opened."""
    store, _ = connect(machine, clock=clock, rng=NoJitter())
    await machine.volume.get()
    waiting: list[asyncio.Future[Any]] = [store.propose(1, 1, b"x"), store.read_index(1, 1), store.drain()]
    await sidecar.proposals.get()
    await listening.close()
    await machine.gone.wait()
    assert [await future for future in waiting] == [m.Unknown(), m.Unavailable(), m.Drained()]
    await listening.start()
    await wait_until(lambda: store.connected, clock)
    opened = listening.open(1, 1)
    (await machine.asked.get())[-1](m.Opened(3, "ok"))
    assert await opened == m.Opened(3, "ok")


async def test_back_off_doubles(tmp_path: Path, machine: FakeMachine, clock: VirtualClock) -> None:
    """A store without a sidecar doubles its retry interval up to one second."""
    waits: list[float] = []

    class Counting(VirtualClock):
        async def sleep(self, seconds: float) -> None:
            waits.append(seconds)
            if len(waits) == 8:
                raise asyncio.CancelledError
            await asyncio.sleep(0)

    store = StoreSocket(tmp_path / "none.sock", volume="", state_machine=machine, clock=Counting(), rng=NoJitter())
    with pytest.raises(asyncio.CancelledError):
        await store.run()
    assert waits == [0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0]


async def test_late_answer_is_discarded(
    listening: SidecarSocket, sidecar: Sidecar, machine: FakeMachine, connect: Connect
) -> None:
    """An answer to a request of an earlier connection does not settle a request of the current one."""
    _, first = connect(machine)
    await sidecar.hello.get()
    future = listening.open(1, 1)
    late = (await machine.asked.get())[-1]
    first.cancel()
    await sidecar.gone.wait()
    connect(machine)
    await sidecar.hello.get()
    again = listening.open(1, 1)
    late(m.Opened(1, "damaged"))
    (await machine.asked.get())[-1](m.Opened(2, "ok"))
    assert await again == m.Opened(2, "ok")
    assert isinstance(future.exception(), DisconnectedError)


async def test_other_volume_is_refused(
    listening: SidecarSocket, sidecar: Sidecar, machine: FakeMachine, connect: Connect
) -> None:
    """A store of another volume gets an error with both volumes, and does not retry."""
    _, task = connect(machine, volume="vol-2")
    with pytest.raises(HandshakeError, match="volume is vol-1 and the store's is vol-2") as refused:
        await task
    assert refused.value.reason == Reason.VOLUME
    assert listening.drops == {Reason.VOLUME: 1}


async def test_other_version_is_refused(
    listening: SidecarSocket, machine: FakeMachine, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store of another version gets an error with both versions."""
    monkeypatch.setattr("evenkeel.wire.sidecar_socket.VERSION", 7)
    _, task = connect(machine)
    with pytest.raises(HandshakeError, match=r"version 7 .* and the store version 1; run both from one release"):
        await task
    assert listening.drops == {Reason.VERSION: 1}


async def test_second_store_is_refused_until_the_first_is_gone(
    listening: SidecarSocket, sidecar: Sidecar, machine: FakeMachine, connect: Connect
) -> None:
    """A second store is refused until the first is disconnected."""
    _, first = connect(machine)
    await sidecar.hello.get()
    other = FakeMachine()
    connect(other)
    await wait_until(lambda: listening.drops[Reason.OCCUPIED] > 0)
    opened = listening.open(1, 1)
    (await machine.asked.get())[-1](m.Opened(1, "ok"))
    assert await opened
    first.cancel()
    assert await other.volume.get() == "vol-1"


async def test_dead_sidecar_s_socket_is_replaced(tmp_path: Path, sidecar: Sidecar) -> None:
    """A stale socket is replaced; a socket in use and other files are not."""
    path = tmp_path / "sm.sock"
    first = SidecarSocket(path, volume="v", handler=sidecar)
    await first.start()
    with pytest.raises(InvalidInputError, match="another process listens"):
        await SidecarSocket(path, volume="v", handler=sidecar).start()
    assert first._server is not None
    first._server.close()  # as a killed process leaves it: the file stays
    second = SidecarSocket(path, volume="v", handler=sidecar)
    await second.start()
    await second.close()
    assert not path.exists()
    path.write_text("something else")
    with pytest.raises(InvalidInputError, match="is not a socket"):
        await SidecarSocket(path, volume="v", handler=sidecar).start()


@pytest.mark.parametrize("bytes_long", [107, 108])
def test_path_length(tmp_path: Path, bytes_long: int) -> None:
    """Both ends reject a path that is too long for a unix socket, with the path, its length and a remedy."""
    path = Path("/" + "é" * 5 + "x" * (bytes_long - 11))
    if bytes_long == 107:
        SidecarSocket(path, volume="v", handler=Sidecar.__new__(Sidecar))
        return
    for make in (
        lambda: SidecarSocket(path, volume="v", handler=Sidecar.__new__(Sidecar)),
        lambda: StoreSocket(path, volume="v", state_machine=FakeMachine.__new__(FakeMachine)),
    ):
        with pytest.raises(InvalidInputError, match=r"108 bytes long.*at most 107.*shorter") as refused:
            make()
        assert str(path) in str(refused.value)


async def test_the_cluster_version_reaches_the_store(
    listening: SidecarSocket, sidecar: Sidecar, machine: FakeMachine, connect: Connect
) -> None:
    """The store learns the cluster version with the hello, and when it rises."""
    store, _ = connect(machine)
    await sidecar.hello.get()
    await machine.volume.get()
    assert store.cluster_version == 1
    listening.set_cluster_version(2)
    await wait_until(lambda: store.cluster_version == 2)


async def test_a_first_release_store_gets_no_version(listening: SidecarSocket, sidecar: Sidecar, raw: Raw) -> None:
    """A store of the first release does not know `Version`; beyond cluster version 1 it is refused."""
    raw.send([0, 0, 0, ["hello", 1, "vol-1", 100]])
    assert (await raw.receive())[3][:3] == ["hello", 1, "vol-1"]
    listening.set_cluster_version(2)
    listening.role(4, 9, leader=True, term=3)
    assert (await raw.receive())[3] == ["role", True, 3, ""]
    await raw.close()
    again = await Raw.connect(listening.path)
    again.send([0, 0, 0, ["hello", 1, "vol-1", 100]])
    assert (await again.receive())[3] == [
        "refused",
        "version",
        "the cluster version is 2, but the store supports 1; run a release of the store that supports it",
    ]
    await again.close()


async def test_a_store_refuses_a_newer_cluster(
    listening: SidecarSocket, sidecar: Sidecar, machine: FakeMachine, connect: Connect
) -> None:
    """A store refuses a sidecar whose cluster version it does not support."""
    _, running = connect(machine)
    await sidecar.hello.get()
    listening.set_cluster_version(99)
    with pytest.raises(HandshakeError, match="the cluster version is 99, but this store supports 1 to 2"):
        await running
