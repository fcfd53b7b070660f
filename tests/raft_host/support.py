"""Stores for tests: hosts on real disks and sockets, reference state machines, and virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from evenkeel.protocol.group_configuration import Configuration
from evenkeel.protocol.keys import group_number
from evenkeel.protocol.leader_decision import GroupView
from evenkeel.protocol.records import Peer, Role, voters
from evenkeel.protocol.replica_decision import Start
from evenkeel.runtime.clock import VirtualClock
from evenkeel.wire.socket_messages import Apply, Committed, Failed, Open, ProposeOutcome, ReadOutcome, Restore
from evenkeel.wire.store_socket import StoreSocket
from evenkeel_raft.core.raft_types import Settings
from evenkeel_raft.host.host import Host
from evenkeel_raft.host.host_settings import HostSettings
from evenkeel_raft.host.raft_replica import Replica
from evenkeel_raft.log.shared_log import LogSettings
from evenkeel_raft.shared.identity import Address
from evenkeel_raft.shared.raft_groups import Partition
from evenkeel_reference.reference_entries import Upsert, encode_entry
from evenkeel_reference.reference_machine import ReferenceMachine
from evenkeel_reference.reference_state import State

LOOPBACK = "127.0.0.1"
ORDERS = Partition("orders.1", 0)
# Virtual time can outrun a busy machine's disks, so state machines get longer than by default to answer.
QUICK = HostSettings(raft=Settings(election_ticks=10, heartbeat_ticks=2), lag_seconds=10.0)
SHORT_LOG = msgspec.structs.replace(QUICK, keep_log_bytes=2000)
SMALL_LOG = LogSettings(segment_bytes=1 << 20, round_bytes=1 << 18)
VALUES = {f"k{number}": "v" * 200 for number in range(60)}


class FaultyMachine(ReferenceMachine):
    """A state machine whose requests can be made to fail or hang."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.asked: Counter[str] = Counter()
        self.refuse: dict[str, str] = {}
        """By kind of request: fail with this text."""
        self.hold: set[str] = set()
        """Kinds of requests that wait until `release`."""
        self._held: list[Callable[[], None]] = []

    def release(self) -> None:
        """Execute all held requests."""
        self.hold = set()
        held, self._held = self._held, []
        for request in held:
            request()

    def open(self, group: int, replica: int, request: Open, answer: Callable[[Any], None]) -> None:
        self._do("open", answer, lambda: super(FaultyMachine, self).open(group, replica, request, answer))

    def apply(self, group: int, replica: int, request: Apply, answer: Callable[[Any], None]) -> None:
        self._do("apply", answer, lambda: super(FaultyMachine, self).apply(group, replica, request, answer))

    def snapshot(self, group: int, replica: int, directory: Path, answer: Callable[[Any], None]) -> None:
        self._do("snapshot", answer, lambda: super(FaultyMachine, self).snapshot(group, replica, directory, answer))

    def restore(self, group: int, replica: int, request: Restore, answer: Callable[[Any], None]) -> None:
        self._do("restore", answer, lambda: super(FaultyMachine, self).restore(group, replica, request, answer))

    def destroy(self, group: int, replica: int, answer: Callable[[Any], None]) -> None:
        self._do("destroy", answer, lambda: super(FaultyMachine, self).destroy(group, replica, answer))

    def _do(self, kind: str, answer: Callable[[Any], None], request: Callable[[], None]) -> None:
        self.asked[kind] += 1
        if kind in self.refuse:
            answer(Failed(self.refuse[kind]))
        elif kind in self.hold:
            self._held.append(request)
        else:
            request()


class Member:
    """One store: a host, and a state machine that can be stopped."""

    def __init__(self, name: str, directory: Path, clock: VirtualClock, settings: HostSettings) -> None:
        self.clock_ahead = 0.0
        """Error of its wall clock in seconds."""
        self.name = name
        self.directory = directory
        self.clock = clock
        self.settings = settings
        self._machine: FaultyMachine | None = None
        self.end: StoreSocket | None = None
        self._running: asyncio.Task[None] | None = None
        self._host: Host | None = None
        self.port = 0

    @property
    def host(self) -> Host:
        assert self._host is not None
        return self._host

    @property
    def up(self) -> bool:
        return self._host is not None

    @property
    def disk_idle(self) -> bool:
        return self._host is None or self._host._context.writer.idle

    async def start(self) -> None:
        self._host = await Host.open(
            self.directory / "raft",
            store=self.name,
            cluster="c",
            socket=self.directory / "raft.sock",
            listen=(LOOPBACK, self.port),
            settings=self.settings,
            log_settings=SMALL_LOG,
            clock=self.clock,
            rng=Random(self.name),
            wall_clock=lambda: 1.7e9 + self.clock.now() + self.clock_ahead,
        )
        self.port = self._host.port

    async def stop(self) -> None:
        if self._host is not None:
            await self._host.close()
            assert not self._host.failed.done(), self._host.failed.exception()
            self._host = None

    async def start_state_machine(self, **faults: Any) -> None:
        self._machine = machine = FaultyMachine(self.directory / "state")
        for name, value in faults.items():
            setattr(machine, name, value)
        self.end = StoreSocket(
            self.directory / "raft.sock", volume=machine.volume, state_machine=machine, clock=self.clock
        )
        self._running = asyncio.create_task(self.end.run())

    async def stop_machine(self) -> None:
        if self._running is None or self._machine is None:
            return
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)
        await self._machine.stop()
        self._machine = self.end = self._running = None

    @property
    def machine(self) -> FaultyMachine:
        assert self._machine is not None
        return self._machine

    @property
    def address(self) -> Address:
        return Address(LOOPBACK, self.port, self.host.identity.volume)

    def peer(self, replica: int = 1, role: Role = Role.VOTER) -> Peer:
        return Peer(self.name, self.host.identity.volume, replica, role)

    @property
    def view(self) -> GroupView | None:
        return self.host.leading(ORDERS) if self.up else None

    async def state(self) -> dict[str, str]:
        """Return the rows of the state machine."""
        group = group_number(*ORDERS)

        def read(state: State) -> dict[str, str]:
            entries = state.contents(group).entries if state.group(group) is not None else ()
            return {key.decode(): value.decode() for key, value, _ in entries}

        return await self.machine.query(read)


class Cluster:
    """Stores that know each other."""

    def __init__(self, directory: Path, *names: str, settings: HostSettings = QUICK) -> None:
        self.clock = VirtualClock()
        self.members: dict[str, Member] = {}
        for name in names:
            (directory / name).mkdir(exist_ok=True)
            self.members[name] = Member(name, directory / name, self.clock, settings)
        self._sequence = 0
        self._stopped: set[str] = set()  # stores whose disks make no progress

    def __getitem__(self, name: str) -> Member:
        return self.members[name]

    async def start(self) -> None:
        for member in self.members.values():
            await member.start()
            await member.start_state_machine()
        self.introduce()

    def introduce(self) -> None:
        """Register all running stores with each other."""
        everybody = {member.name: member.address for member in self.members.values() if member.up}
        for member in self.members.values():
            if member.up:
                member.host.set_peers(everybody)

    async def close(self) -> None:
        for member in self.members.values():
            await member.stop_machine()
            await member.stop()

    async def until(self, condition: Callable[[], object], *, step: float = 0.02) -> None:
        """Run the event loop, and advance virtual time, until a condition holds."""
        async with asyncio.timeout(60):
            while not condition():
                for _ in range(20):
                    await asyncio.sleep(0)
                await self._let_disks_keep_up()
                self.clock.advance(step)

    async def _let_disks_keep_up(self) -> None:
        """Wait for slow disks, because virtual time must not outrun them; skip disks that make no progress."""
        for _ in range(50):
            busy = {name for name, member in self.members.items() if not member.disk_idle}
            self._stopped &= busy
            if not busy - self._stopped:
                return
            await asyncio.sleep(0.001)
        self._stopped = busy

    async def begin(self, *names: str) -> None:
        """Start the group with these voters."""
        peers = tuple(self[name].peer() for name in names)
        for name in names:
            await self[name].host.start(ORDERS, Start(self[name].peer(), Configuration(peers)))
        await self.until(self.leader)

    def leader(self) -> Member | None:
        """Return the leader that has committed in its term, if any."""
        for member in self.members.values():
            if member.up and (view := member.view) is not None and view.committed_in_term:
                return member
        return None

    def leading(self) -> Member:
        leader = self.leader()
        assert leader is not None
        return leader

    def propose(self, member: Member, data: bytes) -> asyncio.Future[ProposeOutcome]:
        assert member.end is not None
        group = group_number(*ORDERS)
        return member.end.propose(group, member.machine.replica(group) or 0, data)

    async def write(self, **values: str) -> list[Committed]:
        """Write through the leader, with retries until it is committed."""
        written = []
        for key, value in values.items():
            self._sequence += 1
            entry = encode_entry(Upsert("test", self._sequence, key.encode(), value.encode()))
            while True:
                await self.until(self.leader)
                future = self.propose(self.leading(), entry)
                await self.until(future.done)
                if isinstance(outcome := future.result(), Committed):
                    written.append(outcome)
                    break
        return written

    async def read_index(self, member: Member) -> ReadOutcome:
        assert member.end is not None
        group = group_number(*ORDERS)
        future = member.end.read_index(group, member.machine.replica(group) or 0)
        await self.until(future.done)
        return future.result()

    async def equal(self, names: Sequence[str], expected: dict[str, str]) -> None:
        """Wait until the state machines of these stores hold these rows."""
        async with asyncio.timeout(60):
            while [await self[name].state() for name in names] != [expected] * len(names):
                await asyncio.sleep(0)
                self.clock.advance(0.02)

    async def change(self, *target: Peer, token: int) -> None:
        """Change the group's configuration, as the agent would."""
        await self.until(lambda: self.leader() is not None and self._step(tuple(sorted(target)), token))

    def _step(self, target: tuple[Peer, ...], token: int) -> bool:
        leader = self.leading()
        view = leader.view
        assert view is not None
        applied = view.applied
        if view.newest != applied:
            return False
        if applied.joint:
            if leader.name in {peer.store for peer in voters(applied.peers)}:
                leader.host.propose(ORDERS, msgspec.structs.replace(applied, outgoing=()))
            else:
                leader.host.transfer(ORDERS, voters(applied.peers)[0].id)
            return False
        if applied.token == token:
            return view.commit_known
        present = {peer.id for peer in applied.peers}
        staged = tuple(msgspec.structs.replace(peer, role=Role.LEARNER) for peer in target if peer.id not in present)
        if staged != applied.staged:
            leader.host.propose(ORDERS, msgspec.structs.replace(applied, staged=staged))
        elif {peer.id for peer in target} <= view.caught_up:
            same = {peer.id for peer in voters(applied.peers)} == {peer.id for peer in voters(target)}
            outgoing = () if same else voters(applied.peers)
            leader.host.propose(ORDERS, Configuration(target, outgoing=outgoing, token=token))
        return False


NewCluster = Callable[..., Awaitable[Cluster]]
"""The fixture that creates clusters."""


def replica_of(member: Member) -> Replica:
    """Return the member's replica of `ORDERS`."""
    return member.host._replicas.by_group[group_number(*ORDERS)]


def problem(member: Member) -> str:
    """Return the reported problem of the member's replica of `ORDERS`."""
    return member.host.reports()[ORDERS].problem


async def pass_time(cluster: Cluster, seconds: float) -> None:
    """Advance virtual time."""
    until = cluster.clock.now() + seconds
    await cluster.until(lambda: cluster.clock.now() >= until)
