"""What one replica has with its state machine: open it, hand it what is committed, restore it.

    gone --open--> opening --opened--> attached --it fails, or goes--> gone

Whatever was asked of a state machine that is gone by now comes to nothing: `_life` tells. Requests of one group are
carried out in their order, so an apply follows a restore without waiting for it. One that fails is opened again, and
later each time, until it gets on: it must not be kept busy with what it cannot do.

Nobody waits for what a follower applies, reads aside, so there entries gather for some milliseconds: the state machine
is woken once for many of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

from evenkeel.errors import DisconnectedError, StateMachineError
from evenkeel.runtime.clock import Timer
from evenkeel.wire.socket_messages import Applied, Doubt, LoggedEntry
from evenkeel_raft.core.errors import InvariantError
from evenkeel_raft.core.raft_types import GENESIS_INDEX, NORMAL, Entry, SnapshotMeta
from evenkeel_raft.core.rawnode import RawNode
from evenkeel_raft.host.host_context import HostContext
from evenkeel_raft.host.received_snapshots import ReceivedSnapshots, remove_soon
from evenkeel_raft.shared.raft_groups import Partition

__all__ = ["Applier"]

_SLICE_BYTES: Final = 1 << 20
_GATHER_SECONDS: Final = 0.005
_GATHER_ENTRIES: Final = 64
_NO_DOUBT: Final = Doubt("")


class Applier:
    """One replica's side of the state-machine socket."""

    def __init__(
        self,
        node: RawNode,
        *,
        group: int,
        replica: int,
        partition: Partition,
        ports: HostContext,
        stir: Callable[[], None],
        changed: Callable[[], None],
        advanced: Callable[[], None],
        broken: Callable[[InvariantError], None],
    ) -> None:
        self.attached = False
        self.failing = False
        """Whether it failed at something and has not got on since."""
        self.doubt = _NO_DOUBT
        """What the state machine says against its own state."""
        self.size: int | None = None
        """How many bytes a snapshot of the state would have, as the state machine last told."""
        self.arrivals = ReceivedSnapshots()
        self._node = node
        self._group = group
        self._replica = replica
        self._partition = partition
        self._ports = ports
        self._stir = stir
        self._changed = changed
        self._advanced = advanced
        self._broken = broken
        self._backoff = ports.backoff()
        self._failure = ""
        self._damage = ""
        self._restored_at: float | None = None
        self._lost = False
        self._life = 0
        self._gathered: list[Entry] = []
        self._timer: Timer | None = None
        self._sent = 0
        self._applied = 0
        self._opening = False
        self._progress_at = 0.0

    # Coming and going

    def open(self) -> None:
        """The state machine is there."""
        self._life += 1
        self._backoff.reset()
        self._ports.tasks.spawn(self._open(self._life, wait=False))

    def reopen(self) -> None:
        """It says that it has lost what it had."""
        if self.attached:
            self.close()
            self.open()

    def close(self) -> None:
        """It is gone, or is not to be asked any more."""
        self._life += 1
        self._opening = False
        self._forget_gathered()
        self.doubt = _NO_DOUBT
        if self.attached:
            self.attached = False
            self._node.detach()
            self._changed()

    def _failed(self, error: BaseException) -> None:
        """The state machine skipped nothing and waits to be opened again."""
        self.close()
        if not isinstance(error, DisconnectedError):
            self.failing, self._failure = True, str(error)
            self._ports.tasks.spawn(self._open(self._life, wait=True))

    async def _open(self, life: int, *, wait: bool) -> None:
        while True:
            if wait:
                await self._backoff.wait()
            if life != self._life:
                return
            self._opening, self._progress_at = True, self._ports.clock.now()
            try:
                applied = await self._find_state()
            except DisconnectedError:
                return
            except StateMachineError as error:
                if life == self._life:
                    self._opening, self._failure, wait = False, str(error), True
                continue
            if life == self._life:
                self._attach(applied)
            return

    async def _find_state(self) -> int:
        """Ask how far the state is; where it is of no use, and a snapshot has arrived, restore that."""
        table, partition = self._partition
        opened = await self._ports.machine.open(self._group, self._replica, table=table, partition=partition)
        applied, offset = opened.applied if opened.state == "ok" else 0, self._node.offset
        if opened.state == "damaged":
            self._failure = f"the state is damaged: {opened.detail}"
            self._damage, self._restored_at = opened.detail, None
        arrived = self.arrivals.get(offset)
        if arrived is None or applied >= offset or self._node.restoring:
            return applied  # what the node is about to restore is not in the log yet, or comes by itself
        try:
            await self._ports.machine.restore(self._group, self._replica, arrived, index=offset)
        except StateMachineError:
            self.arrivals.drop(upto=offset)
            raise
        self._failure = ""
        self.arrivals.drop(upto=offset)
        return offset

    def doubted(self, doubt: Doubt) -> None:
        """The state machine has something to say against its own state, or has not any more."""
        self.doubt = doubt
        self._changed()

    def _attach(self, applied: int) -> None:
        got_on = applied > self._applied or applied >= self._node.committed
        self.failing = self.failing and not got_on
        if got_on:
            self._failure = ""
        self._opening = False
        self._sent = self._applied = applied
        self._progress_at = self._ports.clock.now()
        self._note_restored(applied)
        try:
            self._node.attach(applied)
        except InvariantError as error:
            self._broken(error)
            return
        self._lost = self._node.needs_restore or (self._lost and self._node.lacks_state)
        self.attached = True
        self._changed()

    # Applying

    def apply(self, entries: list[Entry], *, patient: bool) -> None:
        """Hand over what is committed; `patient`: with what is committed soon, unless raft itself waits for it."""
        if not self.attached:
            return  # it has just failed at the snapshot before these, which are handed out again after it is opened
        gathered = self._gathered
        gathered += entries
        if not patient or len(gathered) >= _GATHER_ENTRIES or any(entry.kind != NORMAL for entry in entries):
            self.flush()
        elif self._timer is None:
            self._timer = self._ports.clock.call_at(self._ports.clock.now() + _GATHER_SECONDS, self.flush)

    def flush(self) -> None:
        """Hand over at once what has gathered."""
        if self._gathered:
            entries = self._gathered
            self._forget_gathered()
            self._hand_over(entries)

    def _forget_gathered(self) -> None:
        self._gathered = []
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _hand_over(self, entries: list[Entry]) -> None:
        machine, group, replica = self._ports.machine, self._group, self._replica
        if entries[0].index > max(self._sent, GENESIS_INDEX) + 1:
            self._broken(InvariantError(f"{entries[0].index} would be applied after {self._sent}, skipping entries"))
            return
        self._ports.tally.applied_entries += len(entries)
        if self._sent == self._applied:
            self._progress_at = self._ports.clock.now()
        for last, logged in _slices(entries):
            future = machine.apply(group, replica, first=self._sent + 1, last=last, entries=logged)
            future.add_done_callback(partial(self._on_applied, self._life))
            self._sent = last

    def _on_applied(self, life: int, done: asyncio.Future[int]) -> None:
        if life != self._life or done.cancelled():
            return
        error = done.exception()
        if error is not None:
            self._failed(error)
            return
        self._advance(done.result())

    def _advance(self, index: int) -> None:
        self._applied, self._progress_at = index, self._ports.clock.now()
        self._note_restored(index)
        if self._failure or self.failing:
            self.failing, self._failure = False, ""
            self._backoff.reset()
            self._changed()
        try:
            more = self._node.on_applied(index)
        except InvariantError as error:
            self._broken(error)
            return
        if self._lost and not self._node.lacks_state:
            self._lost = False
        self._advanced()
        if more:
            self._stir()

    @property
    def at_rest(self) -> bool:
        """Whether the state machine is there and owes nothing."""
        return self.attached and self._sent == self._applied and not self._gathered

    @property
    def lost(self) -> bool:
        """Whether the state machine is there and has lost its state, until that is restored.

        A new member that restores its first snapshot has lost nothing.
        """
        return self.attached and self._lost

    def stalled_for(self) -> float:
        """How long the state machine has had something to apply and not got on."""
        return self._ports.clock.now() - self._progress_at if self.attached and self._sent > self._applied else 0.0

    def problem(self) -> str:
        """Why it does not get on, if so."""
        if self._failure:
            return self._failure
        patience = self._ports.settings.lag_seconds
        if self._opening and self._ports.clock.now() - self._progress_at > patience:
            return "the state machine has not answered whether it has the group"
        if self.lost:
            return f"the state machine has lost its state: {self._repair()}"
        if self.stalled_for() > patience:
            return f"the state machine stands still at index {self._applied}"
        return self.damage()

    def _repair(self) -> str:
        if not self._node.needs_restore:
            return "restoring it from a snapshot"
        return f"waiting for a snapshot from {'a member that has it' if self._node.leading else 'the leader'}"

    def _note_restored(self, applied: int) -> None:
        if self._damage and self._restored_at is None and applied >= self._node.committed:
            self._restored_at = self._ports.clock.now()

    def damage(self) -> str:
        """What is wrong with the state itself, if anything is; for a while, too, what was.

        A small state is restored before anybody has looked, and whoever owns the disk should hear of it.
        """
        if self.doubt.detail:
            return f"the state is in doubt: {self.doubt.detail}"
        if self._restored_at is None:
            return f"the state is damaged: {self._damage}" if self._damage else ""
        if self._ports.clock.now() - self._restored_at > self._ports.settings.tell_damage_seconds:
            self._damage, self._restored_at = "", None
            return ""
        return f"the state was damaged, and is restored: {self._damage}"

    # Restoring

    def restore(self, meta: SnapshotMeta) -> None:
        """Let a snapshot that has arrived, and is in the log, replace the state."""
        directory = self.arrivals.get(meta.index)
        if directory is None:
            self._failed(StateMachineError(f"the files of the snapshot at {meta.index} are gone: another is asked for"))
            return
        self._forget_gathered()
        self._sent = meta.index
        self._life += 1  # what was handed over before is of no interest any more
        future = self._ports.machine.restore(self._group, self._replica, directory, index=meta.index)
        future.add_done_callback(partial(self._on_restored, self._life, meta.index))

    def _on_restored(self, life: int, index: int, done: asyncio.Future[Applied]) -> None:
        if life != self._life or done.cancelled():
            return
        error = done.exception()
        if error is None:
            self._ports.tally.snapshots_restored += 1
            self.arrivals.drop(upto=index)
            self._advance(index)
            self._changed()  # this replica may lead now
            return
        if not isinstance(error, DisconnectedError):
            self.arrivals.drop(upto=index)
        self._failed(error)

    def arrived(self, index: int, directory: Path) -> None:
        """A snapshot's files are there; they are of use only if the node takes it."""
        if self._node.restoring == index:
            self.arrivals.add(index, directory)
        elif self.arrivals.get(index) != directory:
            remove_soon(directory)

    # Telling

    def tell_role(self, *, leader: bool, term: int, hint: str) -> None:
        """Let the state machine know who leads."""
        if self.attached:
            self._ports.machine.role(self._group, self._replica, leader=leader, term=term, hint=hint)


def _slices(entries: list[Entry]) -> Iterator[tuple[int, list[LoggedEntry]]]:
    """Cut entries into what fits a frame: the last index of each part, and those of its entries that say something."""
    logged: list[LoggedEntry] = []
    size = 0
    for entry in entries:
        if entry.kind != NORMAL:
            continue
        if size and size + len(entry.data) > _SLICE_BYTES:
            yield entry.index - 1, logged
            logged, size = [], 0
        logged.append(LoggedEntry(entry.index, entry.data))
        size += len(entry.data)
    yield entries[-1].index, logged
