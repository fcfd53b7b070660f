"""A crash between any two statements leaves the state of exactly some prefix of the log.

Files are copied before every statement but SELECT, as a process killed there would leave them, and each copy is opened
as the next process would.
"""

from __future__ import annotations

import itertools
import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evenkeel.wire.socket_messages import Applied
from evenkeel_store.engine.database import Cursor, Database
from tests.store.model import Model, random_log
from tests.store.support import GROUP, REPLICA, Bench, columns, upsert
from tests.store.test_replicas import check, restore_elsewhere


class CopyingCursor:
    """A cursor that copies the files before each statement."""

    def __init__(self, cursor: Cursor, copy: Callable[[], None]) -> None:
        self._cursor = cursor
        self._copy = copy

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)

    def execute(self, sql: str, *arguments: Any) -> Any:
        if not sql.startswith("SELECT"):
            self._copy()
        # DuckDB looks for the variable in its caller's frame, which is this one.
        incoming = sys._getframe(1).f_locals.get("incoming")  # noqa: F841
        return self._cursor.execute(sql, *arguments)


class Copies:
    """Copies of the files, and the acknowledged index of each."""

    def __init__(self, source: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._source = source
        self._target = target
        self._cursor = Database.cursor
        self.acknowledged = 0
        self.taken: list[tuple[Path, int]] = []
        self._last = b""
        monkeypatch.setattr(Database, "cursor", lambda database: CopyingCursor(self._cursor(database), self.take))

    def take(self) -> None:
        files = [file for file in self._source.iterdir() if file.is_file()]
        held = b"".join(file.read_bytes() for file in sorted(files))
        if held != self._last:
            self._last = held
            copy = self._target / str(len(self.taken))
            copy.mkdir(parents=True)
            for file in files:
                shutil.copy(file, copy)
            self.taken.append((copy, self.acknowledged))


@pytest.mark.parametrize("seed", range(2))
def test_crash_between_statements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Rows, tokens, pins and changes are those of the applied index, which is at least the acknowledged one."""
    monkeypatch.setattr("evenkeel_store.engine.journal._MAX_LENGTH", 6)
    rng = random.Random(seed)
    log = list(itertools.islice(random_log(rng), 30))
    models = [Model()]
    for entry in log:
        models.append(models[-1].copy())
        models[-1].apply(*entry)
    with monkeypatch.context() as patch:
        bench = Bench(tmp_path / "data")
        bench.open()
        copies = Copies(tmp_path / "data", tmp_path / "copies", patch)
        bench.engine.reopen()
        while bench.group.metadata.applied < len(log):
            applied = bench.group.metadata.applied
            portion = [entry for entry, _ in log[applied : applied + rng.randrange(1, 6)]]
            assert bench.apply(*portion) == Applied(applied + len(portion))
            copies.acknowledged = bench.group.metadata.applied
            if rng.random() < 0.4:
                bench.fold()
        bench.close()
    assert len(copies.taken) > 10
    seen = set()
    for copy, acknowledged in copies.taken:
        again = Bench(copy)
        applied = again.group.metadata.applied
        assert acknowledged <= applied
        seen.add(applied)
        check(again, models[applied])
        again.close()
    assert len(seen) > 8


def test_crash_while_restoring_and_destroying(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The group is the old one, the restored one or none, always complete, and no table is left over."""
    source = Bench(tmp_path / "source")
    source.open()
    source.apply(columns(), upsert([{"id": number, "name": "new"} for number in range(50)]))
    source.fold()
    source.apply(upsert([{"id": 99, "name": "new"}]))
    bench = Bench(tmp_path / "data")
    bench.open()
    bench.apply(columns(), upsert([{"id": 1, "name": "old"}]))
    with monkeypatch.context() as patch:
        copies = Copies(tmp_path / "data", tmp_path / "copies", patch)
        bench.engine.reopen()
        restore_elsewhere(source, tmp_path / "snapshot", bench)
        bench.fold()
        bench.engine.destroy(GROUP, REPLICA)
        bench.engine.reopen()
        bench.close()
    source.close()
    seen = set()
    for copy, _ in copies.taken:
        again = Bench(copy)
        names = tuple(sorted(again.names().items())) if again.engine.groups else ()
        assert names in ((), ((1, "old"),), (*((number, "new") for number in range(50)), (99, "new")))
        seen.add(len(names))
        with again.engine.database.cursor() as cursor:
            tables = cursor.execute("SELECT count(*) FROM duckdb_tables() WHERE NOT temporary").fetchall()
        assert tables == [(5 if again.engine.groups else 2,)]
        again.close()
    assert seen == {0, 1, 51}
