"""Background work on a thread of its own: folding, hashes at barriers, size estimates, verification reads.

A hash that differs from the leader's is only reported here (log, metric, status). The leader decides which replica is
wrong, by asking all of them (`replica_repair`).

A group with many rows in the log is folded at once. The others are folded after a second, in at most an eighth of the
time, because there may be hundreds of them. In between, each group is read once after the start: DuckDB verifies a
block's checksum when it reads the block, so damage is found before the replica is needed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

import duckdb

from evenkeel.errors import UnavailableError
from evenkeel.runtime.clock import Clock
from evenkeel_store.engine.folding import FOLD_ROWS, fold
from evenkeel_store.engine.group_state import Group
from evenkeel_store.engine.log_entries import Compare
from evenkeel_store.engine.row_reader import RowReader, state_hash
from evenkeel_store.engine.size_estimator import SizeEstimator
from evenkeel_store.engine.table_engine import TableEngine
from evenkeel_store.state_machine.task_set import TaskSet

__all__ = ["FOLD_SECONDS", "BackgroundTasks"]

log = logging.getLogger(__name__)

FOLD_SECONDS: Final = 1.0
"""How long rows stay in the log before their group is folded, however few they are."""

_PAUSE_FACTOR: Final = 7
"""The pause after folding a small group is this many times as long as the fold took."""
_MAX_UNFOLDED: Final = 16 * FOLD_ROWS
"""Above it, applying waits for folding: a long log slows every read down."""
_HASH_OF_NO_ROWS: Final = "0:" + "0" * 16
_Held = tuple[object, int]


class BackgroundTasks:
    """Folds, measures, hashes and verifies an engine's groups; called from the event loop."""

    def __init__(
        self,
        engine: TableEngine,
        rows: RowReader,
        *,
        full: Callable[[], str],
        report: Callable[[int, BaseException], None],
        on_doubt: Callable[[Group], None],
        on_size: Callable[[Group], None],
        clock: Clock,
    ) -> None:
        """`full` returns why the disk takes no writes; `report` gets the errors that groups' rows cause.

        `on_doubt` gets a group whose comparison with the leader has a new result, `on_size` one whose size has changed.
        """
        self._engine = engine
        self._rows = rows
        self._full = full
        self._report = report
        self._on_doubt = on_doubt
        self._on_size = on_size
        self._estimator = SizeEstimator(engine.database, full=full)
        self._unmeasured: dict[int, Group] = {}
        self._clock = clock
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="fold")
        self._running: asyncio.Task[None] | None = None
        self._tasks = TaskSet()
        self._fold_now = asyncio.Event()
        self._verified: set[int] = set()
        self._hash_waiters: dict[tuple[int, int], list[asyncio.Future[None]]] = {}
        self._hashes_running: set[tuple[int, int]] = set()

    def start(self) -> None:
        """Start, if not started yet."""
        if self._running is None:
            self._running = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Finish what is under way, and stop."""
        if self._running is not None:
            self._running.cancel()
        await asyncio.gather(self._tasks.wait(), *([self._running] if self._running else []), return_exceptions=True)
        self._thread.shutdown()

    def applied(self, groups: set[int]) -> None:
        """Start what is due after entries of these groups were applied."""
        known = self._engine.groups
        if any(known[group].unfolded >= FOLD_ROWS for group in groups & known.keys()):
            self._fold_now.set()
        due, self._engine.hashes_due = self._engine.hashes_due, []
        for group, held, version in due:
            self._hashes_running.add((group.number, held[1]))
            self._tasks.spawn(self._take_hash(group, held, version))
        compares, self._engine.compares_due = self._engine.compares_due, []
        for group, compare in compares:
            self._tasks.spawn(self._compare(group, compare))

    async def apply_backpressure(self) -> None:
        """Delay the caller, which applies, while a group's log is far too long."""
        if any(group.unfolded > _MAX_UNFOLDED for group in self._engine.groups.values()):
            await self.fold(FOLD_ROWS)

    async def until_hashed(self, group: Group, index: int) -> str:
        """Wait for the hash at an applied barrier and return it; empty if it could not be taken."""
        if index not in group.hashes:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._hash_waiters.setdefault((group.number, index), []).append(future)
            await future
        return group.hashes.get(index, "")

    async def _run(self) -> None:
        while True:
            await self._sleep(FOLD_SECONDS)
            await self._measure_all()
            if self._fold_now.is_set():
                self._fold_now.clear()
                await self.fold(FOLD_ROWS)
            else:
                await self._fold_slowly()
                await self._verify_one()

    async def _sleep(self, seconds: float) -> None:
        """Sleep, but end early when a group has to be folded at once."""
        timer = asyncio.ensure_future(self._clock.sleep(seconds))
        due = asyncio.ensure_future(self._fold_now.wait())
        try:
            await asyncio.wait({timer, due}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            due.cancel()

    async def _pause(self, began: float) -> None:
        """Pause in proportion to the work since `began`."""
        await self._sleep(_PAUSE_FACTOR * (self._clock.now() - began))

    # Folding

    async def fold(self, least: int = 1) -> None:
        """Fold all groups with at least `least` rows in the log."""
        for group in self._unfolded(least):
            await self._try_fold(group)

    async def _fold_slowly(self) -> None:
        for group in self._unfolded(1):
            began = self._clock.now()
            await self._try_fold(group)
            await self._pause(began)
            if self._fold_now.is_set():
                return

    def _unfolded(self, least: int) -> list[Group]:
        groups = sorted(self._engine.groups.values(), key=lambda group: -group.unfolded)
        return [group for group in groups if group.unfolded >= least and not group.metadata.damage]

    async def _try_fold(self, group: Group) -> None:
        if self._full():
            return
        try:
            folded = await asyncio.get_running_loop().run_in_executor(self._thread, self._fold, group)
        except duckdb.Error as error:
            self._report(group.number, error)
        else:
            await self._measure(group, folded)

    def _fold(self, group: Group) -> int:
        engine, folded = self._engine, 0
        with engine.tables_lock, contextlib.closing(engine.database.cursor()) as cursor:
            if engine.groups.get(group.number) is group:
                folded = fold(engine.database, cursor, group)
                engine.counters["folded_rows"] += folded
                engine.counters["folds"] += 1
        return folded

    # Measuring

    def schedule_measurement(self, group: Group) -> None:
        """Measure a group that was just opened or restored."""
        self._unmeasured[group.number] = group
        group.size = None
        group.samples.clear()

    async def _measure_all(self) -> None:
        while self._unmeasured and not self._fold_now.is_set():
            _, group = self._unmeasured.popitem()
            await self._measure(group)

    async def _measure(self, group: Group, written: int = 0) -> None:
        if group.metadata.damage or self._engine.groups.get(group.number) is not group:
            return
        try:
            measure = partial(self._estimator.measure, group, written=written)
            changed = await asyncio.get_running_loop().run_in_executor(self._thread, measure)
        except duckdb.Error as error:
            self._report(group.number, error)
        except OSError as error:
            log.warning("cannot estimate the size of the partition: %s", error, extra=group.metadata.fields())
        else:
            if changed:
                self._on_size(group)

    # Hashing

    async def _verify_one(self) -> None:
        """Read all rows of one group that was not read since the start."""
        for number, group in list(self._engine.groups.items()):
            layout = group.layout
            if number not in self._verified and layout is not None and not group.metadata.damage:
                self._verified.add(number)
                began = self._clock.now()
                await self._hash(group, group.hold(), layout.schema.version)
                await self._pause(began)
                return

    async def _take_hash(self, group: Group, held: _Held, version: int) -> None:
        try:
            value = await self._hash(group, held, version)
            if value:
                group.note_hash(held[1], value)
        finally:
            # Also after an error: those who wait would block the store's stop forever.
            self._hashes_running.discard((group.number, held[1]))
            for future in self._hash_waiters.pop((group.number, held[1]), []):
                if not future.done():
                    future.set_result(None)

    async def _compare(self, group: Group, leaders: Compare) -> None:
        """Compare our hash with the leader's; do nothing if none was taken here at that barrier."""
        if (group.number, leaders.index) in self._hashes_running:
            await self.until_hashed(group, leaders.index)
        ours = group.hashes.get(leaders.index, "")
        if not ours:
            return
        self._engine.counters["comparisons"] += 1
        before, group.differs = group.differs, ""
        if ours != leaders.hash:
            group.differs = (
                f"at index {leaders.index} the hash of the rows is {ours}, and the leader's is {leaders.hash}"
            )
            log.error("rows differ from the leader's: %s", group.differs, extra=group.metadata.fields())
        if group.differs != before:
            self._on_doubt(group)

    async def _hash(self, group: Group, held: _Held, version: int) -> str:
        """Return the hash of the rows at a held index and release it; empty if the rows cannot be read."""

        def take() -> str:
            return state_hash(self._rows, group, at=held[1], version=version) if version else _HASH_OF_NO_ROWS

        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, take)
        except (duckdb.Error, UnavailableError) as error:
            self._report(group.number, error)
            return ""
        finally:
            group.release(held)
