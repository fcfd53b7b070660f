"""Full disks and damaged files: nothing is skipped, and no damaged data is used."""

from __future__ import annotations

import contextlib
import random
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from evenkeel.errors import UnavailableError, UnsupportedVersionError
from evenkeel.wire.flight import ReadRequest
from evenkeel.wire.socket_messages import Applied, Failed
from evenkeel_store.engine import table_engine
from evenkeel_store.engine.apply_batch import log_rows
from evenkeel_store.engine.database import Database, is_damage, is_fatal
from evenkeel_store.engine.journal import Journal
from evenkeel_store.serving.scans import Scanner
from tests.store.file_damage import flip_rows
from tests.store.support import GROUP, Bench, columns, upsert
from tests.store.test_replicas import restore_elsewhere


@contextlib.contextmanager
def no_file_larger_than(size: int) -> Iterator[None]:
    """Let writes past a file size fail, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def batch(first: int) -> bytes:
    return upsert([{"id": number, "name": f"{number * 7919}" * 30} for number in range(first, first + 500)])


def test_full_disk_while_committing(bench: Bench) -> None:
    """A transaction that does not fit on the disk is rolled back; the group stays readable and goes on later."""
    bench.apply(columns(), batch(0))
    with no_file_larger_than(bench.engine.database.wal_bytes + 1000):
        answer = bench.apply(batch(500))
        assert isinstance(answer, Failed)
        assert answer.detail.startswith("group 7 stops before 3: ")
        assert bench.ids() == list(range(500))
    assert bench.apply(batch(500)) == Applied(3)
    bench.engine.reopen()
    assert bench.ids() == list(range(1000))


def test_full_disk_stops_only_what_does_not_fit(bench: Bench) -> None:
    """Of two groups in one transaction, the one whose entries fit is applied."""
    bench.open(8, 1)
    bench.apply(columns(), group=8, replica=1)
    bench.apply(columns())
    with no_file_larger_than(bench.engine.database.wal_bytes + 20_000):
        big, small = bench.engine.apply(
            [bench.request(batch(0)), bench.request(upsert([{"id": 1}]), group=8, replica=1)]
        )
    assert (type(big), small) == (Failed, Applied(2))
    assert (bench.ids(), bench.ids(8)) == ([], [1])


def test_commit_whose_checkpoint_fails_counts(bench: Bench) -> None:
    """DuckDB reports a durable commit as failed if its own checkpoint fails; the reopened database decides."""
    bench.apply(columns(), batch(0))
    with bench.engine.database.cursor() as cursor:
        cursor.execute("SET checkpoint_threshold = '1KB'")
    bench.engine.database.checkpoint(always=True)
    size = (bench.engine.database.bytes // 4096 + 1) * 4096
    with no_file_larger_than(size):
        assert bench.apply(batch(500)) == Applied(3)
        assert bench.engine.counters["reopenings"] == 1
        assert bench.ids() == list(range(1000))
    assert bench.apply(batch(1000)) == Applied(4)
    assert len(bench.ids()) == 1500


def test_fold_that_fails_changes_nothing(bench: Bench) -> None:
    """A fold that fails on a full disk changes nothing, and succeeds once there is room."""
    bench.apply(columns(), batch(0), batch(500))
    with no_file_larger_than(bench.engine.database.wal_bytes + 1000), pytest.raises(duckdb.Error):
        bench.fold()
    assert (bench.group.unfolded, bench.ids()) == (1000, list(range(1000)))
    assert bench.fold() == 1000
    assert (bench.group.unfolded, bench.ids()) == (0, list(range(1000)))


@pytest.mark.parametrize("place", [0, 4100, 8200, 12300])
def test_damaged_file_is_set_aside(tmp_path: Path, place: int) -> None:
    """A file with damaged headers is renamed and reported as damaged."""
    file = tmp_path / "tables.duckdb"
    database = Database(file)
    with database.cursor() as cursor:
        cursor.execute("CREATE TABLE t AS SELECT 1 AS x")
    database.close()
    data = bytearray(file.read_bytes())
    data[place] ^= 0xFF
    file.write_bytes(data)
    database = Database(file)
    assert str(file) in database.damage
    assert (tmp_path / "tables.duckdb.damaged").read_bytes() == data
    with database.cursor() as cursor:
        assert cursor.execute("SELECT count(*) FROM duckdb_tables()").fetchall() == [(0,)]
    database.close()


def test_database_of_a_newer_release_is_refused(tmp_path: Path) -> None:
    """A newer format is refused before the database is opened: it must not be set aside as damaged."""
    file, note = tmp_path / "tables.duckdb", tmp_path / "tables.duckdb.format"
    Database(file).close()
    for text, why in (
        ('{"format": 9}', "has format 9, and this release reads up to 1: run the"),
        ("?", "cannot read the format of the database"),
    ):
        note.write_text(text)
        before = file.read_bytes()
        with pytest.raises(UnsupportedVersionError, match=why):
            Database(file)
        assert file.read_bytes() == before
        assert not file.with_name("tables.duckdb.damaged").exists()
    note.unlink()
    Database(file).close()
    assert note.read_text() == '{"format":1}', "a database of the first release gets its format file when it is opened"


def test_damaged_write_ahead_log(tmp_path: Path) -> None:
    """Damage in the middle of the write-ahead log is reported, not taken for its end."""
    bench = Bench(tmp_path / "data")
    bench.open()
    bench.apply(columns(), batch(0))
    wal = tmp_path / "data" / "tables.duckdb.wal"
    data = bytearray(wal.read_bytes())
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "tables.duckdb").write_bytes((tmp_path / "data" / "tables.duckdb").read_bytes())
    bench.close()
    data[len(data) // 2] ^= 0xFF
    (copy / "tables.duckdb.wal").write_bytes(data)
    again = Bench(copy)
    assert "WAL" in again.engine.database.damage
    assert again.engine.open(GROUP, 3, table="orders.1", partition=0).state == "damaged"
    again.close()


def killed_copy(bench: Bench, copy: Path) -> Path:
    """Copy what a killed store leaves behind; returns the path of the write-ahead log."""
    copy.mkdir()
    for file in bench.engine.database.directory.glob("tables.duckdb*"):
        shutil.copy(file, copy)
    return copy / "tables.duckdb.wal"


def test_write_ahead_log_that_seems_to_end_early(bench: Bench, tmp_path: Path) -> None:
    """A bit flipped in a length is not taken for a crash: lost transactions are counted and can be applied again."""
    bench.apply(columns(), batch(0))
    bench.engine.database.checkpoint(always=True)
    bench.apply(batch(500))
    bench.apply(batch(1000))
    wal = killed_copy(bench, tmp_path / "copy")
    data = bytearray(wal.read_bytes())
    data[0] ^= 0xFF
    wal.write_bytes(data)
    again = Bench(tmp_path / "copy")
    assert (again.engine.counters["lost_transactions"], again.engine.database.damage) == (2, "")
    opened = again.engine.open(GROUP, 3, table="orders.1", partition=0)
    assert (opened.applied, opened.state) == (2, "ok")
    again.apply(batch(500))
    again.apply(batch(1000))
    assert again.hash() == bench.hash()
    again.engine.reopen()
    assert again.engine.counters["lost_transactions"] == 2
    again.close()


def test_no_flipped_bit_in_the_log_goes_unnoticed(tmp_path: Path) -> None:
    """Wherever a bit flips, the database is set aside, or the loss is counted, or nothing is lost."""
    bench = Bench(tmp_path / "data")
    bench.open()
    bench.apply(columns())
    bench.engine.database.checkpoint(always=True)
    for number in range(3):
        bench.apply(upsert([{"id": number}]))
    good = killed_copy(bench, tmp_path / "copy").read_bytes()
    bench.close()
    outcomes = set()
    for place in (0, 1, 80, *range(5, len(good), 29), len(good) - 20):
        target = tmp_path / "again"
        shutil.copytree(tmp_path / "copy", target)
        data = bytearray(good)
        data[place] ^= 0x81
        (target / "tables.duckdb.wal").write_bytes(data)
        again = Bench(target)
        damage, lost = again.engine.database.damage, again.engine.counters["lost_transactions"]
        applied = 0 if damage else again.engine.open(GROUP, 3, table="orders.1", partition=0).applied
        assert damage or lost == 4 - applied, f"byte {place}"
        outcomes.add("damage" if damage else lost)
        again.close()
        shutil.rmtree(target)
    assert {"damage", 1, 3} <= outcomes


def test_killed_in_the_middle_of_a_commit(bench: Bench, tmp_path: Path) -> None:
    """A log cut off before its last transaction was acknowledged counts no loss."""
    bench.apply(columns(), batch(0))
    killed_copy(bench, tmp_path / "copy")
    before = (tmp_path / "copy" / "tables.duckdb.last").read_bytes()
    bench.apply(batch(500))
    wal = killed_copy(bench, tmp_path / "later")
    (tmp_path / "later" / "tables.duckdb.last").write_bytes(before)
    wal.write_bytes(wal.read_bytes()[:-100])
    again = Bench(tmp_path / "later")
    assert (again.engine.counters["lost_transactions"], again.engine.database.damage) == (0, "")
    assert again.engine.open(GROUP, 3, table="orders.1", partition=0).applied == 2
    again.close()


def test_transaction_numbers_continue_after_the_journal_is_shortened(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers continue when the journal is rewritten and the database reopened."""
    monkeypatch.setattr("evenkeel_store.engine.journal._MAX_LENGTH", 3)
    bench.apply(columns())
    for number in range(10):
        bench.apply(upsert([{"id": number}]))
        bench.engine.reopen()
    assert bench.engine.counters["lost_transactions"] == 0
    assert bench.engine.database.watermark.read() > 11
    assert bench.ids() == list(range(10))


@pytest.mark.parametrize(
    ("error", "damage", "fatal"),
    [
        (duckdb.Error("Corrupt database file: computed checksum 1 does not match"), True, False),
        (duckdb.IOException('Could not read enough bytes from file "tables.duckdb": attempted to'), True, False),
        (duckdb.IOException('Could not read from file "tables.duckdb": Input/output error'), True, False),
        (duckdb.FatalException("database has been invalidated"), False, True),
        (duckdb.IOException("Could not write file: No space left on device"), False, False),
        (ValueError("corrupt"), False, False),
    ],
)
def test_error_classification(error: Exception, damage: bool, fatal: bool) -> None:
    """Damage, and errors that require a reopen, are distinguished from other errors."""
    assert (is_damage(error), is_fatal(error)) == (damage, fatal)


def test_failing_statement_in_one_group(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A database error in a merged transaction stops only the group that causes it."""
    bench.open(8, 1)
    bench.apply(columns())
    bench.apply(columns(), group=8, replica=1)

    def poisoned(groups: Any, pieces: Any) -> Any:
        if GROUP in groups:
            raise duckdb.OutOfMemoryException("no memory")
        return log_rows(groups, pieces)

    monkeypatch.setattr(table_engine, "log_rows", poisoned)
    answers = bench.engine.apply(
        [bench.request(upsert([{"id": 1}])), bench.request(upsert([{"id": 2}]), group=8, replica=1)]
    )
    assert answers == [Failed("group 7 stops before 2: no memory"), Applied(2)]
    monkeypatch.undo()
    assert bench.apply(upsert([{"id": 1}])) == Applied(2)


def test_half_read_scan_ends_when_the_database_is_reopened(bench: Bench) -> None:
    """DuckDB cannot reopen a file while results are half read, so scans are ended with a reason."""
    bench.apply(columns(), *(batch(first) for first in range(0, 70_000, 500)))
    scanner = Scanner(bench.rows)
    result = scanner.scan(bench.group, ReadRequest(table="orders"))
    next(result)
    bench.engine.reopen()
    with pytest.raises(UnavailableError, match="the database was reopened"):
        next(result)
    assert len(bench.ids()) == 70_000


@pytest.mark.parametrize("how", ["restore", "destroy"])
def test_damaged_log_is_left_behind(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """An unreadable log does not prevent restoring or destroying a group that uses it."""
    source = Bench(tmp_path / "source")
    source.open()
    source.apply(columns(), batch(0))
    bench.open(8, 1)
    bench.apply(columns(), upsert([{"id": 1}]), group=8, replica=1)
    bench.apply(columns(), batch(0))
    bench.engine.mark_damaged(8, "bad block")
    log = bench.group.metadata.log
    failing = f"DELETE FROM log_{log}"

    def damaged(cursor: Any, *statements: str) -> None:
        for statement in statements:
            if statement.startswith(failing):
                raise duckdb.Error("Corrupt database file: computed checksum 1 does not match stored checksum 2")
            cursor.execute(statement)

    monkeypatch.setattr(table_engine, "run", damaged)
    if how == "destroy":
        bench.engine.destroy(GROUP, 3)
        assert list(bench.engine.groups) == [8]
    else:
        bench.engine.mark_damaged(GROUP, "bad block")
        restore_elsewhere(source, tmp_path / "snapshot", bench)
        assert bench.group.metadata.log != log
        assert bench.ids() == list(range(500))
        bench.engine.reopen()
        assert (bench.group.unfolded, bench.ids()) == (500, list(range(500)))
    source.close()


def test_journal_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A database with a damaged journal is set aside like one that cannot be opened."""
    bench = Bench(tmp_path / "data")
    bench.open()
    bench.close()
    load = Journal.load

    def damaged(journal: Journal, cursor: Any) -> Any:
        monkeypatch.setattr(Journal, "load", load)
        raise duckdb.Error("Corrupt database file: computed checksum 1 does not match stored checksum 2")

    monkeypatch.setattr(Journal, "load", damaged)
    again = Bench(tmp_path / "data")
    assert again.engine.groups == {}
    assert "Corrupt" in again.engine.database.damage
    assert (tmp_path / "data" / "tables.duckdb.damaged").exists()
    assert again.engine.open(GROUP, 3, table="orders.1", partition=0).state == "damaged"
    again.close()


def test_damaged_block_is_found_during_a_read(tmp_path: Path) -> None:
    """DuckDB verifies a block when it reads it; an error in the middle of a result is damage, too."""
    bench = Bench(tmp_path / "data")
    bench.open()
    rng = random.Random(1)
    rows = [{"id": key, "name": rng.randbytes(40).hex()} for key in range(20_000)]
    bench.apply(columns(), upsert(rows))
    bench.fold()
    before = bench.hash()
    bench.engine.database.checkpoint(always=True)
    bench.close()
    flip_rows(tmp_path / "data" / "tables.duckdb")
    again = Bench(tmp_path / "data")
    with pytest.raises(duckdb.Error) as found:
        again.hash()
    assert is_damage(found.value), before
    again.close()
