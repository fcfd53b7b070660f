"""What is done behind the writers' back, on a thread of its own: folding, hashes at barriers, a look at every block.

A hash that differs from the leader's is told (log, metric, status), and nothing else is done about it here: which of
the two is wrong, the leader finds out by asking them all (`healing`).

Groups with many rows in the log are folded at once, the others after a second, but not for more than an eighth of the
time: there may be hundreds of them. In between each group is read through once since the start, because DuckDB checks
a block when it is read, and a replica that nobody reads should not be found damaged on the day it is needed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

import duckdb

from evenkeel.errors import UnavailableError
from evenkeel.runtime.clock import Clock
from evenkeel_store.engine.folding import FOLD_ROWS, fold
from evenkeel_store.engine.group_state import Group
from evenkeel_store.engine.log_entries import Compare
from evenkeel_store.engine.row_reader import RowReader, state_hash
from evenkeel_store.engine.size_estimator import SizeEstimator
from evenkeel_store.engine.table_engine import TableEngine

__all__ = ["FOLD_SECONDS", "BackgroundTasks"]

log = logging.getLogger(__name__)

FOLD_SECONDS: Final = 1.0
"""How long rows may be in the log before their group is folded, however few they are."""

_RESTS: Final = 7
"""How much longer than it took to fold a small group the rest after it is."""
# Past it folding comes first: writers are slowed down before readers are.
_MOST_UNFOLDED: Final = 16 * FOLD_ROWS
_NOTHING: Final = "0:" + "0" * 16
_Held = tuple[object, int]


class BackgroundTasks:
    """Keeps an engine's groups folded and looked after, from the event loop."""

    def __init__(
        self,
        engine: TableEngine,
        rows: RowReader,
        *,
        full: Callable[[], str],
        report: Callable[[int, BaseException], None],
        doubted: Callable[[Group], None],
        measured: Callable[[Group], None],
        clock: Clock,
    ) -> None:
        """`full` says why nothing may be written; `report` is told what errors groups met.

        `doubted` is called with groups that were compared, where that changed what is known against their rows, and
        `measured` with groups whose size has changed.
        """
        self._engine = engine
        self._rows = rows
        self._full = full
        self._report = report
        self._doubted = doubted
        self._measured = measured
        self._sizing = SizeEstimator(engine.database, full=full)
        self._unmeasured: dict[int, Group] = {}
        self._clock = clock
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="fold")
        self._running: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._fold_now = asyncio.Event()
        self._verified: set[int] = set()
        self._hashing: dict[tuple[int, int], list[asyncio.Future[None]]] = {}
        self._taking: set[tuple[int, int]] = set()

    def start(self) -> None:
        """Begin, if it has not begun yet."""
        if self._running is None:
            self._running = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Finish what is under way, and end."""
        if self._running is not None:
            self._running.cancel()
        await asyncio.gather(*self._tasks, *([self._running] if self._running else []), return_exceptions=True)
        self._thread.shutdown()

    def applied(self, groups: set[int]) -> None:
        """Take note that entries of these groups were applied."""
        known = self._engine.groups
        if any(known[group].unfolded >= FOLD_ROWS for group in groups & known.keys()):
            self._fold_now.set()
        due, self._engine.hashes_due = self._engine.hashes_due, []
        for group, held, version in due:
            self._taking.add((group.number, held[1]))
            self._spawn(self._take_hash(group, held, version))
        compares, self._engine.compares_due = self._engine.compares_due, []
        for group, compare in compares:
            self._spawn(self._compare(group, compare))

    async def slow_down(self) -> None:
        """Let whoever applies wait while a log is far too long."""
        if any(group.unfolded > _MOST_UNFOLDED for group in self._engine.groups.values()):
            await self.fold(FOLD_ROWS)

    async def until_hashed(self, group: Group, index: int) -> str:
        """Wait for the hash taken at a barrier that is applied, and return it; empty where it could not be taken."""
        if index not in group.hashes:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._hashing.setdefault((group.number, index), []).append(future)
            await future
        return group.hashes.get(index, "")

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

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
        """Wait, unless something has to be folded at once."""
        timer = asyncio.ensure_future(self._clock.sleep(seconds))
        due = asyncio.ensure_future(self._fold_now.wait())
        try:
            await asyncio.wait({timer, due}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            due.cancel()

    async def _rest(self, began: float) -> None:
        """Leave most of the time to others."""
        await self._sleep(_RESTS * (self._clock.now() - began))

    # Folding

    async def fold(self, least: int = 1) -> None:
        """Fold all groups with at least so many rows in the log."""
        for group in self._unfolded(least):
            await self._try_fold(group)

    async def _fold_slowly(self) -> None:
        for group in self._unfolded(1):
            began = self._clock.now()
            await self._try_fold(group)
            await self._rest(began)
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

    def measure_soon(self, group: Group) -> None:
        """Find out how large a group is that was just opened, or has other rows now."""
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
            measure = partial(self._sizing.measure, group, written=written)
            changed = await asyncio.get_running_loop().run_in_executor(self._thread, measure)
        except duckdb.Error as error:
            self._report(group.number, error)
        except OSError as error:
            log.warning("the size of the rows cannot be sampled: %s", error, extra=group.metadata.fields())
        else:
            if changed:
                self._measured(group)

    # Reading through

    async def _verify_one(self) -> None:
        """Read through one group that was not yet since the start."""
        for number, group in list(self._engine.groups.items()):
            layout = group.layout
            if number not in self._verified and layout is not None and not group.metadata.damage:
                self._verified.add(number)
                began = self._clock.now()
                await self._hash(group, group.hold(), layout.schema.version)
                await self._rest(began)
                return

    async def _take_hash(self, group: Group, held: _Held, version: int) -> None:
        try:
            value = await self._hash(group, held, version)
            if value:
                group.note_hash(held[1], value)
        finally:
            # Whatever went wrong: who waits for it would wait for ever, and the store's end for them.
            self._taking.discard((group.number, held[1]))
            for future in self._hashing.pop((group.number, held[1]), []):
                if not future.done():
                    future.set_result(None)

    async def _compare(self, group: Group, leaders: Compare) -> None:
        """Compare our hash with the leader's; where none was taken (we were not here then) there is nothing to say."""
        if (group.number, leaders.index) in self._taking:
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
            log.error("rows are not as the leader has them: %s", group.differs, extra=group.metadata.fields())
        if group.differs != before:
            self._doubted(group)

    async def _hash(self, group: Group, held: _Held, version: int) -> str:
        """Return the hash of the rows at an index, and let it go; empty where they cannot be read."""

        def take() -> str:
            return state_hash(self._rows, group, at=held[1], version=version) if version else _NOTHING

        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, take)
        except (duckdb.Error, UnavailableError) as error:
            self._report(group.number, error)
            return ""
        finally:
            group.release(held)
