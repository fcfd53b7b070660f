"""Opens, feeds and restores the state machine of one replica.

    closed --open--> opening --opened--> attached --failure or disconnect--> closed

Each opening and each restore starts a new session; answers that belong to an earlier session are ignored. The state
machine executes the requests of one group in order, so an apply may follow a restore without waiting for it. A state
machine that fails is opened again with backoff.

On a follower only reads wait for an apply, so entries are batched for some milliseconds and wake the state
machine once.
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
from evenkeel_raft.host.received_snapshots import ReceivedSnapshots, remove_in_background
from evenkeel_raft.shared.raft_groups import Partition

__all__ = ["Applier"]

_SLICE_BYTES: Final = 1 << 20
_BATCH_SECONDS: Final = 0.005
_BATCH_ENTRIES: Final = 64
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
        context: HostContext,
        enqueue: Callable[[], None],
        on_change: Callable[[], None],
        on_advance: Callable[[], None],
        on_failure: Callable[[InvariantError], None],
    ) -> None:
        self.attached = False
        self.failing = False
        """Whether the state machine failed and has made no progress since."""
        self.doubt = _NO_DOUBT
        """The state machine's doubt about its own state."""
        self.size: int | None = None
        """Size of a snapshot of the state in bytes, as last reported by the state machine."""
        self.received_snapshots = ReceivedSnapshots()
        self._node = node
        self._group = group
        self._replica = replica
        self._partition = partition
        self._context = context
        self._enqueue = enqueue
        self._on_change = on_change
        self._on_advance = on_advance
        self._on_failure = on_failure
        self._backoff = context.backoff()
        self._failure = ""
        self._damage_detail = ""
        self._restored_at: float | None = None
        self._state_lost = False
        self._session = 0
        self._batch: list[Entry] = []
        self._timer: Timer | None = None
        self._sent = 0
        self._applied = 0
        self._opening = False
        self._progress_at = 0.0

    # Opening and closing

    def open(self) -> None:
        """Open the group; the state machine has connected."""
        self._session += 1
        self._backoff.reset()
        self._context.tasks.spawn(self._open(self._session, wait=False))

    def reopen(self) -> None:
        """Open the group again, because the state machine lost its state."""
        if self.attached:
            self.close()
            self.open()

    def close(self) -> None:
        """Stop using the state machine, because it disconnected or failed, or the replica stopped."""
        self._session += 1
        self._opening = False
        self._clear_batch()
        self.doubt = _NO_DOUBT
        if self.attached:
            self.attached = False
            self._node.detach()
            self._on_change()

    def _failed(self, error: BaseException) -> None:
        """Close and open again after a failure; the state machine has skipped nothing."""
        self.close()
        if not isinstance(error, DisconnectedError):
            self.failing, self._failure = True, str(error)
            self._context.tasks.spawn(self._open(self._session, wait=True))

    async def _open(self, session: int, *, wait: bool) -> None:
        while True:
            if wait:
                await self._backoff.wait()
            if session != self._session:
                return
            self._opening, self._progress_at = True, self._context.clock.now()
            try:
                applied = await self._open_or_restore()
            except DisconnectedError:
                return
            except StateMachineError as error:
                if session == self._session:
                    self._opening, self._failure, wait = False, str(error), True
                continue
            if session == self._session:
                self._attach(applied)
            return

    async def _open_or_restore(self) -> int:
        """Open the group and return its applied index; first restore a received snapshot if the state is unusable."""
        table, partition = self._partition
        opened = await self._context.machine.open(self._group, self._replica, table=table, partition=partition)
        applied, offset = opened.applied if opened.state == "ok" else 0, self._node.offset
        if opened.state == "damaged":
            self._failure = f"the state is damaged: {opened.detail}"
            self._damage_detail, self._restored_at = opened.detail, None
        directory = self.received_snapshots.get(offset)
        if directory is None or applied >= offset or self._node.restoring:
            return applied  # the node restores it itself, once the log has it
        try:
            await self._context.machine.restore(self._group, self._replica, directory, index=offset)
        except StateMachineError:
            self.received_snapshots.drop(upto=offset)
            raise
        self._failure = ""
        self.received_snapshots.drop(upto=offset)
        return offset

    def set_doubt(self, doubt: Doubt) -> None:
        """Record the state machine's doubt about its own state, or the end of it."""
        self.doubt = doubt
        self._on_change()

    def _attach(self, applied: int) -> None:
        progressed = applied > self._applied or applied >= self._node.committed
        self.failing = self.failing and not progressed
        if progressed:
            self._failure = ""
        self._opening = False
        self._sent = self._applied = applied
        self._progress_at = self._context.clock.now()
        self._record_restored(applied)
        try:
            self._node.attach(applied)
        except InvariantError as error:
            self._on_failure(error)
            return
        self._state_lost = self._node.needs_restore or (self._state_lost and self._node.lacks_state)
        self.attached = True
        self._on_change()

    # Applying

    def apply(self, entries: list[Entry], *, may_wait: bool) -> None:
        """Send committed entries; with `may_wait`, batch normal entries for some milliseconds."""
        if not self.attached:
            return  # the restore before these entries failed; the node hands them out again after the next open
        batch = self._batch
        batch += entries
        if not may_wait or len(batch) >= _BATCH_ENTRIES or any(entry.kind != NORMAL for entry in entries):
            self.flush()
        elif self._timer is None:
            self._timer = self._context.clock.call_at(self._context.clock.now() + _BATCH_SECONDS, self.flush)

    def flush(self) -> None:
        """Send the batch now."""
        if self._batch:
            entries = self._batch
            self._clear_batch()
            self._send(entries)

    def _clear_batch(self) -> None:
        self._batch = []
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _send(self, entries: list[Entry]) -> None:
        machine, group, replica = self._context.machine, self._group, self._replica
        if entries[0].index > max(self._sent, GENESIS_INDEX) + 1:
            self._on_failure(InvariantError(f"apply of {entries[0].index} after {self._sent} would skip entries"))
            return
        self._context.counters.applied_entries += len(entries)
        if self._sent == self._applied:
            self._progress_at = self._context.clock.now()
        for last, logged in _slices(entries):
            future = machine.apply(group, replica, first=self._sent + 1, last=last, entries=logged)
            future.add_done_callback(partial(self._on_applied, self._session))
            self._sent = last

    def _on_applied(self, session: int, done: asyncio.Future[int]) -> None:
        if session != self._session or done.cancelled():
            return
        error = done.exception()
        if error is not None:
            self._failed(error)
            return
        self._advance(done.result())

    def _advance(self, index: int) -> None:
        self._applied, self._progress_at = index, self._context.clock.now()
        self._record_restored(index)
        if self._failure or self.failing:
            self.failing, self._failure = False, ""
            self._backoff.reset()
            self._on_change()
        try:
            more = self._node.on_applied(index)
        except InvariantError as error:
            self._on_failure(error)
            return
        if self._state_lost and not self._node.lacks_state:
            self._state_lost = False
        self._on_advance()
        if more:
            self._enqueue()

    @property
    def idle(self) -> bool:
        """Whether the state machine is attached and has applied everything it was sent."""
        return self.attached and self._sent == self._applied and not self._batch

    @property
    def lost_state(self) -> bool:
        """Whether the state machine is attached and lost its state, until the state is restored.

        A new member that restores its first snapshot has lost nothing.
        """
        return self.attached and self._state_lost

    def stalled_for(self) -> float:
        """Return for how many seconds the state machine has had entries to apply without progress."""
        return self._context.clock.now() - self._progress_at if self.attached and self._sent > self._applied else 0.0

    def problem(self) -> str:
        """Return why there is no progress, or an empty string."""
        if self._failure:
            return self._failure
        timeout = self._context.settings.lag_seconds
        if self._opening and self._context.clock.now() - self._progress_at > timeout:
            return "the state machine has not answered the open request"
        if self.lost_state:
            return f"the state machine has lost its state: {self._repair_progress()}"
        if self.stalled_for() > timeout:
            return f"the state machine is stalled at index {self._applied}"
        return self.damage()

    def _repair_progress(self) -> str:
        if not self._node.needs_restore:
            return "restoring it from a snapshot"
        return f"waiting for a snapshot from {'a member that has it' if self._node.leading else 'the leader'}"

    def _record_restored(self, applied: int) -> None:
        if self._damage_detail and self._restored_at is None and applied >= self._node.committed:
            self._restored_at = self._context.clock.now()

    def damage(self) -> str:
        """Return what is or recently was wrong with the state, or an empty string.

        A small state is restored before anyone notices, but the owner of the disk should see that it was damaged.
        """
        if self.doubt.detail:
            return f"the state is in doubt: {self.doubt.detail}"
        if self._restored_at is None:
            return f"the state is damaged: {self._damage_detail}" if self._damage_detail else ""
        if self._context.clock.now() - self._restored_at > self._context.settings.report_damage_seconds:
            self._damage_detail, self._restored_at = "", None
            return ""
        return f"the state was damaged and has been restored: {self._damage_detail}"

    # Restoring

    def restore(self, meta: SnapshotMeta) -> None:
        """Replace the state with a received snapshot that is in the log."""
        directory = self.received_snapshots.get(meta.index)
        if directory is None:
            self._failed(
                StateMachineError(
                    f"files of the snapshot at index {meta.index} are missing; requesting another snapshot"
                )
            )
            return
        self._clear_batch()
        self._sent = meta.index
        self._session += 1  # ignore answers to earlier applies
        future = self._context.machine.restore(self._group, self._replica, directory, index=meta.index)
        future.add_done_callback(partial(self._on_restored, self._session, meta.index))

    def _on_restored(self, session: int, index: int, done: asyncio.Future[Applied]) -> None:
        if session != self._session or done.cancelled():
            return
        error = done.exception()
        if error is None:
            self._context.counters.snapshots_restored += 1
            self.received_snapshots.drop(upto=index)
            self._advance(index)
            self._on_change()  # this replica may be fit to lead now
            return
        if not isinstance(error, DisconnectedError):
            self.received_snapshots.drop(upto=index)
        self._failed(error)

    def on_snapshot_received(self, index: int, directory: Path) -> None:
        """Keep the files of a received snapshot if the node restores it; delete them otherwise."""
        if self._node.restoring == index:
            self.received_snapshots.add(index, directory)
        elif self.received_snapshots.get(index) != directory:
            remove_in_background(directory)

    # Role

    def publish_role(self, *, leader: bool, term: int, hint: str) -> None:
        """Report the leader to the state machine."""
        if self.attached:
            self._context.machine.role(self._group, self._replica, leader=leader, term=term, hint=hint)


def _slices(entries: list[Entry]) -> Iterator[tuple[int, list[LoggedEntry]]]:
    """Split entries to fit into frames: yield the last index of each part and its normal entries."""
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
