"""One replica with its process, disk and state machine, which carries out its node's `ready`."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

from evenkeel_raft.core.errors import RefusedError
from evenkeel_raft.core.raft_messages import InstallSnapshot, Message, SnapshotRequest
from evenkeel_raft.core.raft_types import Entry, Settings, SnapshotMeta
from evenkeel_raft.core.rawnode import AppendBatch, RawNode, Ready
from tests.raft.check.invariants import ViolationError
from tests.raft.sim.disk import Disk
from tests.raft.sim.store import State, Store

if TYPE_CHECKING:
    from tests.raft.sim.world import World

TICK = 10
_NOTHING = Ready(None, None, [], [], [], [], None)


class Host:
    """A replica's process. `node` is None while it is down."""

    def __init__(self, world: World, replica: int, store_id: int, meta: SnapshotMeta) -> None:
        self.world = world
        self.replica = replica
        self.store_id = store_id
        self.disk = Disk(meta)
        self.store = Store()
        self.node: RawNode | None = None
        self.destroyed = False
        self.damaged = False  # the state machine lost its state and has not restored it
        self.life = 0  # events of an earlier life are dropped
        self.disk_failed = False  # from then on it is unknown what is durable
        self.attachment = 0  # work of an earlier attachment is dropped
        self.paused = False
        self._deferred: list[tuple[int, Callable[..., None], tuple[Any, ...]]] = []
        self._tick_missed = False
        self._pump_due = self._pumped = False
        self._applying_until = 0
        self._reporting_until = 0
        self._rate = 1.0
        self.snapshots: dict[int, State] = {}
        self.without: set[int] = set()  # members that were absent at some time since the group quiesced
        self.asked_from: dict[int, int] = {}  # by replica that requested a snapshot, where its log begins

    # Time

    def later(self, delay: int, action: Callable[..., None], *args: Any) -> None:
        """Schedule an action in this life of the process; it waits while the process is paused."""
        self.world.clock.later(delay, self._happen, self.life, action, args)

    def _happen(self, life: int, action: Callable[..., None], args: tuple[Any, ...]) -> None:
        if life != self.life or self.node is None:
            return
        if self.paused:
            if action == self._tick:
                self._tick_missed = True  # a timer that fires late fires once
            else:
                self._deferred.append((life, action, args))
            return
        action(*args)
        self.world.checked(self)

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        """Resume: external events of the pause run in any order, the process's own work in its order."""
        self.paused = False
        deferred, self._deferred = self._deferred, []
        outside = [item for item in deferred if item[1] in (self.receive, self.call)]
        self.world.rng.shuffle(outside)
        for item in deferred:
            life, action, args = outside.pop() if item[1] in (self.receive, self.call) else item
            self._happen(life, action, args)
        if self._tick_missed:
            self._tick_missed = False
            self.later(0, self._tick)

    # Life

    def start(self) -> None:
        """Start from the contents of the disk and the state machine."""
        world, disk = self.world, self.disk
        self.life += 1
        self.paused, self._deferred, self._pump_due, self._tick_missed = False, [], False, False
        self._pumped = self.disk_failed = False
        self._applying_until = self._reporting_until = world.clock.now
        self.attachment += 1
        mix = world.mix
        limits = {"max_append_bytes": 100, "max_inflight_entries": 4} if mix.small_messages else {}
        late = world.rng.random() < mix.store_late
        applied = self.store.reopen(disk.meta)
        self.damaged = applied < disk.meta.index
        self.node = world.make_node(
            group=1,
            replica=self.replica,
            rng=Random(world.rng.getrandbits(32)),
            settings=Settings(election_ticks=mix.election_ticks, heartbeat_ticks=2, **limits),
            meta=disk.meta,
            hard_state=disk.hard_state,
            entries=list(disk.entries),
            applied=None if late else applied,
        )
        if late:
            self.later(world.rng.randint(0, 500), self.attach_store)
        world.invariants.started(self.replica, self.node)
        self._rate = 1.0 + mix.skew * (world.rng.random() - 0.5)
        self.later(world.rng.randint(1, TICK), self._tick)

    def crash(self) -> None:
        """Crash: any prefix of the unsynced writes survives."""
        world = self.world
        self.node = None
        self.life += 1
        self.disk.crash(world.rng.randint(0, self.disk.queued_records()))
        self.store.crash()
        self.snapshots = {}
        world.clients.host_died(self)

    def fail_disk(self) -> None:
        """Fail every sync from now on; unsynced writes may still reach the disk."""
        self.disk_failed = True

    def destroy(self) -> None:
        """Destroy the process and its disks."""
        if self.node is not None:
            self.crash()
        self.destroyed = True

    def detach_store(self) -> None:
        """Kill the state machine's process; it reattaches later with its durable state."""
        self.attachment += 1
        self._running().detach()
        self.store.crash()
        self.later(self.world.rng.randint(0, 1000), self.attach_store)
        self.pump_soon()

    def attach_store(self) -> None:
        """Reattach the state machine."""
        node = self._running()
        if not node.status().detached:
            return
        node.attach(self.store.reopen(self.disk.meta))
        self.world.invariants.attached(self.replica, node)
        self.damaged = node.status().needs_restore
        self.pump_soon()

    def _tick(self) -> None:
        assert self.node is not None
        more = self.node.tick()
        self.later(max(1, round(TICK * self._rate)), self._tick)
        self._check_and_pump(more)

    # Work

    def receive(self, message: Message, state: State | None) -> None:
        assert self.node is not None
        if isinstance(message, SnapshotRequest):
            self.asked_from[message.sender] = max(message.index, self.asked_from.get(message.sender, 0))
        if isinstance(message, InstallSnapshot) and state is not None:
            self.store.files[message.meta.index] = state
        self.node.step(message)
        self.pump_soon()

    def call(self, request: Callable[[RawNode], None]) -> None:
        """Run a client's or administrator's request on the node."""
        request(self._running())
        self.pump_soon()

    def pump_soon(self) -> None:
        """Pump now, or slightly later together with further input."""
        world = self.world
        if self._pump_due:
            return
        if world.rng.random() < world.mix.take_late:
            self._pump_due = True
            self.later(world.rng.randint(0, 5), self._pump_late)
        else:
            self.pump()

    def _pump_late(self) -> None:
        self._pump_due = False
        self.pump()

    def _check_and_pump(self, more: bool) -> None:
        """Pump, and check that a node which reported no work has none."""
        if not more and self._pumped and not self._pump_due:
            out = self._running().ready()
            assert out == _NOTHING, out
        self.pump_soon()

    def pump(self) -> None:
        """Take the node's `ready` and start its work."""
        assert self.node is not None
        self._pumped = True
        messages = self.node.ready_messages()
        out = self.node.ready()
        if messages is not None:
            assert out == _NOTHING, "there was more to be done than to send"
            out.messages = messages
        self._begin(out)

    def _begin(self, out: Ready) -> None:
        world = self.world
        if out.append is not None:
            world.invariants.writing(self.replica, self._running(), out.append)
            self.disk.queue.append(out.append)
            self.later(world.rng.randint(0, 2 * world.mix.disk_delay), self._sync)
        for message in out.messages:
            self._send(message)
        if out.restore is not None:
            self._queue_apply(self._restore, out.restore)
        if out.apply:
            world.invariants.applying(self.replica, out.apply)
            world.clients.committed(self, out.apply)
            self._queue_apply(self._apply, out.apply)
        for read in out.read_states:
            world.clients.read_answered(self, read)
        for to in out.snapshots:
            self.later(world.rng.randint(0, 30), self._make_snapshot, to)

    def _running(self) -> RawNode:
        assert self.node is not None
        return self.node

    def _send(self, message: Message) -> None:
        world = self.world
        world.invariants.sent(message)
        if isinstance(message, InstallSnapshot):
            if message.meta.index < self.asked_from.get(message.receiver, 0):
                raise ViolationError(f"replica {self.replica} sends a snapshot that ends before the other's log begins")
            world.network.send(message, self.snapshots[message.meta.index], self._snapshot_settled)
        else:
            world.network.send(message)

    def _sync(self) -> None:
        if not self.disk_failed:
            self._synced(self.disk.sync())

    def _synced(self, batch: AppendBatch) -> None:
        world = self.world
        for message in batch.responses:
            self._send(message)
        delay = world.rng.randint(0, 60) if world.rng.random() < world.mix.persisted_late else 0
        if delay or self._reporting_until > world.clock.now:
            self._reporting_until = max(self._reporting_until, world.clock.now + delay)
            self.later(self._reporting_until - world.clock.now, self._persisted, batch)
        else:
            self._persisted(batch)

    def _persisted(self, batch: AppendBatch) -> None:
        self._check_and_pump(self._running().on_persisted(batch.token))

    def _queue_apply(self, action: Callable[..., None], item: Any) -> None:
        world = self.world
        delay = world.rng.randint(0, 2 * world.mix.apply_delay)
        if world.rng.random() < world.mix.apply_sticks:
            delay = world.rng.randint(100, 1000)
        self._applying_until = max(self._applying_until, world.clock.now) + delay
        self.later(self._applying_until - world.clock.now, self._if_attached, self.attachment, action, item)

    def _if_attached(self, attachment: int, action: Callable[..., None], item: Any) -> None:
        if attachment == self.attachment:
            action(item)

    def _apply(self, entries: list[Entry]) -> None:
        world, store = self.world, self.store
        if entries[0].index != store.applied + 1:
            return  # a snapshot was restored in between
        for entry in entries:
            result = store.apply(entry)
            world.clients.applied(self, entry, result)
        self._applied()
        if world.rng.random() < world.mix.checkpoint:
            store.checkpoint()

    def _restore(self, meta: SnapshotMeta) -> None:
        if meta.index > self.store.applied:
            self.store.restore(meta.index)
            self.damaged = False
            self._applied()

    def _applied(self) -> None:
        store = self.store
        self.world.invariants.state(self.replica, store.applied, hash(frozenset(store.state.values.items())))
        more = self._running().on_applied(store.applied)
        self.world.clients.caught_up(self)
        self._check_and_pump(more)

    # Snapshots

    def _make_snapshot(self, to: int) -> None:
        index = self.store.applied
        try:
            self.snapshots[index] = self.store.state
            self._running().snapshots.send(to, index)
        except RefusedError:
            self.later(50, self._report_snapshot, to)
            return
        self.pump_soon()

    def _snapshot_settled(self, message: Message) -> None:
        self.later(0, self._report_snapshot, message.receiver)

    def _report_snapshot(self, to: int) -> None:
        self._running().snapshots.report(to)
        self.pump_soon()

    def compact(self) -> None:
        """Compact the log up to what the state machine made durable, sometimes completely."""
        node = self._running()
        status = node.status()
        upto = min(self.store.durable.index, status.applied)
        if upto > status.offset and not status.needs_restore:
            self.disk.compact(node.compact(self.world.rng.randint(status.offset, upto)))
