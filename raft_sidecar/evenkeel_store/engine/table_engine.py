"""All groups of a store on one database: opening, applying, restoring, destroying.

Everything here runs on the apply thread. The waiting entries of all groups go into one transaction: their rows into the
logs, everything else into one row of the journal. If that transaction fails, each group gets its own, so that only a
group that cannot be applied stops.

After an error that DuckDB calls fatal, the transaction may be durable all the same. The database is then reopened, and
its contents decide.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import duckdb
import msgspec
import pyarrow as pa

from evenkeel.errors import StateMachineError
from evenkeel.rows.row_schema import RowSchema
from evenkeel.wire.socket_messages import Applied, Apply, Failed, Opened
from evenkeel_store.engine.apply_batch import ApplyBatch, EntryRows, IndexedEntry, PendingEntries, expired, log_rows
from evenkeel_store.engine.database import Cursor, Database, insert, is_damage, is_fatal, run
from evenkeel_store.engine.group_metadata import GroupMetadata, Step
from evenkeel_store.engine.group_state import Group
from evenkeel_store.engine.journal import Journal, KeptGroup
from evenkeel_store.engine.log_entries import AddColumns, Compare, Expire, LogTime
from evenkeel_store.engine.log_time import begin, within_bounds
from evenkeel_store.engine.table_layout import TableLayout, signature

__all__ = ["Request", "TableEngine"]

DATABASE: Final = "tables.duckdb"


class Request(NamedTuple):
    """Entries to apply to a group."""

    group: int
    replica: int
    apply: Apply


class TableEngine:
    """The groups of one store."""

    def __init__(
        self,
        directory: Path,
        *,
        memory: str = "",
        threads: int = 0,
        full: Callable[[], str] = lambda: "",
    ) -> None:
        """`full` returns why the disk takes no writes; empty while there is room."""
        self.database = Database(directory / DATABASE, memory=memory, threads=threads)
        self.groups: dict[int, Group] = {}
        self.tables_lock = threading.Lock()
        """Held while tables are folded, altered or dropped."""
        self.hashes_due: list[tuple[Group, tuple[object, int], int]] = []
        """Applied barriers: the group, its held index, and the number of columns."""
        self.compares_due: list[tuple[Group, Compare]] = []
        """Leaders' hashes to compare with our own."""
        self.counters: Counter[str] = Counter()
        """Counts for metrics."""
        self._full = full
        self._restored: set[int] = set()
        self._load_or_reset()

    def close(self) -> None:
        """Close the database."""
        self._cursor.close()
        self.database.close()

    # Loading

    def _load_or_reset(self) -> None:
        try:
            self._load()
        except duckdb.Error as error:
            if not is_damage(error):
                raise
            with contextlib.suppress(duckdb.Error):
                self._cursor.close()
            self.database.reset(error)
            self.groups.clear()
            self._load()

    def _load(self) -> None:
        self._cursor = self.database.cursor()
        self._journal = Journal(self._cursor)
        found: dict[int, Group] = {}
        for item in self._journal.load(self._cursor):
            if isinstance(item, Step):
                _take_step(found, item)
            else:
                found[item[0]] = Group(*item)
        for number in self.groups.keys() - found.keys():
            del self.groups[number]
        self._count_rows(found.values())
        for number, group in found.items():
            known = self.groups.setdefault(number, group)
            # The counts must be right before readers see the new layout.
            known.unfolded, known.folded = group.unfolded, group.folded
            known.replace(group.kept())
        self._count_lost_transactions()
        self._next_table = 1 + max((int(name.partition("_")[2]) for name in self._tables()), default=0)
        self._drop_orphans()

    def _count_lost_transactions(self) -> None:
        """Count transactions that are missing at the end of the database; the sidecar applies them again.

        What is left is consistent: each entry of DuckDB's log has a checksum, and only the end can be missing.
        """
        watermark = self.database.watermark
        self.counters["lost_transactions"] += max(0, watermark.read() - self._journal.last)
        watermark.write(self._journal.last)

    def _tables(self) -> list[str]:
        listing = "SELECT table_name FROM duckdb_tables() WHERE NOT temporary AND table_name SIMILAR TO '[a-z]+_[0-9]+'"
        return [name for (name,) in self._cursor.execute(listing).fetchall()]

    def _drop_orphans(self) -> None:
        """Drop tables that no group uses: of an interrupted restore, or an unused log."""
        layouts = [group.layout for group in self.groups.values() if group.layout is not None]
        used = {table for layout in layouts for table in (*layout.tables(), layout.log)}
        run(self._cursor, *(f"DROP TABLE {table}" for table in self._tables() if table not in used))

    def _count_rows(self, groups: Iterable[Group]) -> None:
        """Count the rows of groups that have no readers yet."""
        layouts = {group.number: (group, group.layout) for group in groups if group.layout is not None}
        sizes = dict(self._cursor.execute("SELECT table_name, estimated_size FROM duckdb_tables()").fetchall())
        for group, layout in layouts.values():
            group.folded = sizes.get(layout.rows, 0)
        for log in {layout.log for _, layout in layouts.values()}:
            for number, rows in self._cursor.execute(f"SELECT g, count(*) FROM {log} GROUP BY g").fetchall():
                # A group that was restored because of a damaged log has left rows in that log.
                if number in layouts and layouts[number][1].log == log:
                    layouts[number][0].unfolded = rows

    def reopen(self) -> None:
        """Reopen the database and load the groups from it."""
        with self.tables_lock:
            with contextlib.suppress(duckdb.Error):
                self._cursor.close()
            self.database.reopen()
            self._load_or_reset()
        self.counters["reopenings"] += 1

    # Opening and destroying

    def open(self, number: int, replica: int, *, table: str, partition: int) -> Opened:
        """Open a replica; one that is unknown, or replaces another replica of the group, begins empty."""
        group = self.groups.get(number)
        if group is not None and group.metadata.replica != replica:
            self.destroy(number, group.metadata.replica)
            group = None
        if group is None:
            metadata = GroupMetadata(replica=replica, table=table, partition=partition)
            self._commit([Step(number, 0, metadata=metadata, begins=True)])
            group = self.groups[number]
        elif (group.metadata.table, group.metadata.partition) != (table, partition):
            metadata = msgspec.structs.replace(group.metadata, table=table, partition=partition)
            self._commit([Step(number, metadata.applied, metadata=metadata)])
        return self._opened(group)

    def _opened(self, group: Group) -> Opened:
        if group.metadata.damage:
            return Opened(0, "damaged", group.metadata.damage)
        if self.database.damage and group.number not in self._restored and not group.metadata.applied:
            return Opened(0, "damaged", self.database.damage)
        return Opened(group.metadata.applied, "ok") if group.metadata.applied else Opened(0, "empty")

    def destroy(self, number: int, replica: int) -> None:
        """Delete a group, unless another replica of it is here."""
        group = self.groups.get(number)
        if group is None or group.metadata.replica != replica:
            return
        layout = group.layout
        try:
            self._restructure(group, Step(number, 0, ends=True), _drop(group))
        except duckdb.Error as error:
            if not is_damage(error) or group.metadata.damage:
                raise
            self.mark_damaged(number, str(error))
            self._restructure(group, Step(number, 0, ends=True), _drop(group))
        if layout is not None:
            self._drop_log(layout)

    def mark_damaged(self, number: int, detail: str) -> None:
        """Record that a group's rows are damaged, until it is restored."""
        group = self.groups.get(number)
        if group is not None and not group.metadata.damage:
            metadata = msgspec.structs.replace(group.metadata, damage=detail)
            self._commit([Step(number, metadata.applied, metadata=metadata)])

    # Applying

    def apply(self, requests: Sequence[Request]) -> list[Applied | Failed]:
        """Apply requests in as few transactions as possible; returns one answer per request."""
        pending: dict[int, PendingEntries] = {}
        accepted = [self._accept(pending, request) for request in requests]
        while unfinished := [entries for entries in pending.values() if entries.more]:
            full = self._full()
            if full:
                for entries in unfinished:
                    entries.stop(full)
            else:
                self._advance(unfinished)
        self._shorten_journal()
        self.counters["applied_entries"] += sum(len(request.apply.entries) for request in requests)
        pairs = zip(requests, accepted, strict=True)
        return [_answer(request, pending.get(request.group), was_accepted) for request, was_accepted in pairs]

    def _accept(self, pending: dict[int, PendingEntries], request: Request) -> bool:
        group = self.groups.get(request.group)
        if group is None:
            return False
        if group.metadata.damage and request.apply.first == 1 and group.metadata.replica == request.replica:
            self._reset_group(group)
        return pending.setdefault(request.group, PendingEntries(group)).add(request.replica, request.apply)

    def _reset_group(self, group: Group) -> None:
        """Drop a damaged group's rows: the sidecar sends the whole log instead of a snapshot."""
        metadata = GroupMetadata(
            replica=group.metadata.replica, table=group.metadata.table, partition=group.metadata.partition
        )
        dropped = [] if group.layout is None else group.layout.drop()
        try:
            self._restructure(group, Step(group.number, 0, metadata=metadata, begins=True), dropped)
        except duckdb.Error as error:
            # The tables cannot even be dropped; the group stays damaged, and the answer says so.
            self._recover(error)
            return
        group.forget_comparisons()

    def _advance(self, pending: Sequence[PendingEntries]) -> None:
        """Apply the next part of each group, or stop the group."""
        try:
            parts = [(entries, *entries.next_part()) for entries in pending]
            alone = [bool(part) and part[0].stands_alone(entries.group.metadata) for entries, part, _ in parts]
            together = [part for part, is_alone in zip(parts, alone, strict=True) if not is_alone]
            if together:
                self._apply_together(together)
            for (entries, logged, _), is_alone in zip(parts, alone, strict=True):
                if is_alone:
                    self._apply_alone(entries.group, logged[0])
        except (duckdb.Error, OSError, _FlushedError) as error:
            self._recover(error)
            if len(pending) > 1:
                for entries in pending:
                    if entries.more:
                        self._advance([entries])
            elif pending[0].more:
                self._stop(pending[0], error)

    def _stop(self, entries: PendingEntries, error: BaseException) -> None:
        if is_damage(error):
            self.mark_damaged(entries.group.number, str(error))
        entries.stop(str(error).partition("\n")[0])

    def _recover(self, error: BaseException) -> None:
        if is_fatal(error):
            self.reopen()

    def _apply_together(self, parts: Iterable[tuple[PendingEntries, list[IndexedEntry], int]]) -> None:
        batches: list[tuple[ApplyBatch, int]] = []
        with self.database.transaction(self._cursor):
            for entries, part, last in parts:
                batch = self._make_batch(entries, part)
                if batch is not None:
                    batches.append((batch, last))
            if not batches:
                return
            self._flush([batch for batch, _ in batches])
            steps = [batch.step(last) for batch, last in batches]
            self._journal.write(self._cursor, steps)
        self._hold_for_hashes(batches)
        for batch, _ in batches:
            # Before the applied index advances: readers skip the log of a group that counts no rows there.
            batch.group.count(batch.written)
            batch.group.note_stamps(batch.stamps)
            self.counters["applied_rows"] += batch.written
        self._written(steps)
        self.counters["transactions"] += 1

    def _make_batch(self, entries: PendingEntries, part: Sequence[IndexedEntry]) -> ApplyBatch | None:
        batch = ApplyBatch(entries.group)
        try:
            for logged in part:
                batch.take(logged, self._count_keys)
        except StateMachineError as error:
            if batch.written:
                raise _FlushedError(str(error)) from error
            entries.stop(str(error))
            return None
        return batch

    def _count_keys(self, batch: ApplyBatch, rows: pa.RecordBatch) -> int:
        self._flush([batch])
        layout = batch.layout
        keys = ", ".join(layout.keys)
        self._cursor.register("requested", pa.Table.from_batches([rows.select(list(layout.keys))]))
        try:
            there = f"(SELECT DISTINCT {keys} FROM requested) SEMI JOIN ({layout.source([])}) USING ({keys})"
            [(count,)] = self._cursor.execute(f"SELECT count(*) FROM {there}").fetchall()
        finally:
            self._cursor.unregister("requested")
        return int(count)

    def _flush(self, batches: Iterable[ApplyBatch]) -> None:
        """Insert the rows of batches into their logs."""
        by_log: dict[str, tuple[list[int], list[EntryRows]]] = {}
        for batch in batches:
            if batch.pieces:
                groups, pieces = by_log.setdefault(batch.layout.log, ([], []))
                taken = batch.take_pieces()
                groups += [batch.group.number] * len(taken)
                pieces += taken
        for log, (groups, pieces) in by_log.items():
            insert(self._cursor, log, log_rows(groups, pieces))

    def _hold_for_hashes(self, batches: Iterable[tuple[ApplyBatch, int]]) -> None:
        """Hold the indexes of barriers before the applied index advances, or folding could pass them."""
        for batch, _ in batches:
            for index in batch.hashes:
                schema = batch.metadata.schema
                self.hashes_due.append((batch.group, batch.group.hold(index), schema.version if schema else 0))
            self.compares_due += [(batch.group, compare) for compare in batch.compares]

    def _apply_alone(self, group: Group, logged: IndexedEntry) -> None:
        if isinstance(logged.entry, Expire):
            self._expire(group, logged.at, logged.entry)
        elif isinstance(logged.entry, LogTime):
            self._commit([begin(group, logged.at, logged.entry.at)])
        elif isinstance(logged.entry, AddColumns):
            self._add_columns(group, logged.at, logged.entry)

    def _expire(self, group: Group, index: int, entry: Expire) -> None:
        time, due = within_bounds(group.metadata, entry)
        silent = group.tokens.silent_since(due.writers)
        self._commit(
            [Step(group.number, index, metadata=expired(group.metadata, due), forgotten_writers=silent, time=time)]
        )

    def _add_columns(self, group: Group, index: int, entry: AddColumns) -> None:
        metadata, old = group.metadata, group.layout
        schema = entry.schema if metadata.schema is None or entry.schema.extends(metadata.schema) else metadata.schema
        if (schema, entry.changes) == (metadata.schema, metadata.changes):
            self._commit([Step(group.number, index)])
            return
        log, statements = self._log_for(group.number, schema)
        rows = metadata.rows or self.table_number()
        layout = TableLayout(group.number, schema, rows=rows, log=log, changes=entry.changes)
        statements += layout.create() if old is None else old.migrate_to(layout)
        forgotten = index if entry.changes and not metadata.changes else metadata.forgotten
        changed = {"schema": schema, "changes": entry.changes, "rows": rows, "log": log, "forgotten": forgotten}
        step = Step(group.number, index, metadata=msgspec.structs.replace(metadata, **changed))
        self._restructure(group, step, statements)
        if old is not None and old.log != layout.log:
            self._drop_log(old)

    # Restoring

    def adopt(self, number: int, replica: int, kept: KeptGroup, fill: Callable[[TableLayout, Cursor], None]) -> None:
        """Replace a group with a restored one. `fill` inserts its rows of the log, given the layout.

        Its other tables already exist, under the number in its metadata; they are dropped if this fails.
        """
        group, metadata, schema = self.groups.get(number), kept.metadata, kept.metadata.schema
        layout: TableLayout | None = None
        created: list[str] = []
        if schema is not None:
            log, created = self._log_for(number, schema)
            layout = TableLayout(number, schema, rows=metadata.rows, log=log, changes=metadata.changes)
            metadata = msgspec.structs.replace(metadata, log=log)
        try:
            if group is None or group.metadata.replica != replica:
                raise StateMachineError(f"group {number} is not open for replica {replica}: open it first")
            dropped = _drop(group)
            step = Step(number, metadata.applied, kept.uses, metadata=metadata, begins=True)
            filling = partial(fill, layout) if layout is not None else None
            self._restructure(group, step, [*dropped, *created], fill=filling)
        except (duckdb.Error, StateMachineError):
            if layout is not None:
                run(self._cursor, *(f"DROP TABLE IF EXISTS {table}" for table in layout.tables()))
            raise
        self._restored.add(number)
        group.forget_comparisons()

    # Journal

    def _restructure(
        self, group: Group, step: Step, statements: Sequence[str], *, fill: Callable[[Cursor], None] | None = None
    ) -> None:
        """Change tables and write a step in one transaction; readers notice it and query again."""
        layout = group.layout
        with self.tables_lock:
            group.layout = None
            try:
                with self.database.transaction(self._cursor):
                    run(self._cursor, *statements)
                    if fill is not None:
                        fill(self._cursor)
                    counts = self._counts_after(group, step)
                    self._journal.write(self._cursor, [step])
            except BaseException:
                group.layout = layout
                raise
            group.unfolded, group.folded = counts
            self._written([step])

    def _counts_after(self, group: Group, step: Step) -> tuple[int, int]:
        """Return how many rows the group will have in the log and folded."""
        if step.metadata is None or not step.begins:
            return group.unfolded, group.folded
        coming = Group(group.number, KeptGroup(step.metadata, []))
        self._count_rows([coming])
        return coming.unfolded, coming.folded

    def _commit(self, steps: Sequence[Step]) -> None:
        with self.database.transaction(self._cursor):
            self._journal.write(self._cursor, steps)
        self._written(steps)

    def _written(self, steps: Sequence[Step]) -> None:
        self._journal.written(steps)
        self.database.watermark.write(self._journal.last)
        for step in steps:
            _take_step(self.groups, step)

    def _shorten_journal(self) -> None:
        """Replace a long journal by the groups' present state. If that fails, the journal stays as it is."""
        changed = self._journal.changed
        if changed is None or self._full():
            return
        kept = {number: self.groups[number].kept() if number in self.groups else None for number in changed}
        try:
            with self.database.transaction(self._cursor):
                self._journal.rewrite(self._cursor, kept)
        except duckdb.Error as error:
            self._recover(error)
        else:
            self._journal.rewritten()
            self.database.watermark.write(self._journal.last)

    # Tables

    def table_number(self) -> int:
        """Return an unused number for tables."""
        number, self._next_table = self._next_table, self._next_table + 1
        return number

    def _log_for(self, number: int, schema: RowSchema) -> tuple[int, list[str]]:
        """Return the number of the log for a schema, and the statements that create it if it does not exist."""
        layouts = [group.layout for group in self.groups.values() if group.layout is not None]
        # The damage of one group may be in the log that it shares.
        damaged = {group.metadata.log for group in self.groups.values() if group.metadata.damage}
        for layout in layouts:
            if signature(layout.schema) == signature(schema) and layout.log_number not in damaged:
                return layout.log_number, []
        made = TableLayout(number, schema, rows=0, log=self.table_number(), changes=False)
        return made.log_number, [made.create_log()]

    def _drop_log(self, layout: TableLayout) -> None:
        """Drop a log that no group uses any more."""
        logs = {group.layout.log for group in self.groups.values() if group.layout is not None}
        if layout.log not in logs:
            with self.tables_lock:
                run(self._cursor, f"DROP TABLE {layout.log}")


def _drop(group: Group) -> list[str]:
    """Return the statements that delete a group's rows, without reading damaged ones."""
    return [] if group.layout is None else group.layout.drop(from_log=not group.metadata.damage)


class _FlushedError(Exception):
    """A group failed after some of its rows were inserted, so the transaction must be rolled back."""


def _answer(request: Request, entries: PendingEntries | None, accepted: bool) -> Applied | Failed:
    if entries is None:
        return Failed(f"group {request.group} is not open: open it first")
    applied = entries.group.metadata.applied
    return Applied(applied) if accepted and applied >= request.apply.last else Failed(entries.failure)


def _take_step(groups: dict[int, Group], step: Step) -> None:
    if step.ends:
        groups.pop(step.group, None)
        return
    if step.begins and step.metadata is not None and step.group not in groups:
        groups[step.group] = Group(step.group, KeptGroup(step.metadata, []))
    groups[step.group].advance(step)
