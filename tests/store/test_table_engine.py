"""The engine: entries are applied once, in order and atomically, and readable at any held index."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import duckdb
import pytest

from evenkeel.wire.socket_messages import Applied, Apply, Failed, LoggedEntry, Opened
from evenkeel_store.engine.group_metadata import ENDED_KEPT, PinnedAt
from evenkeel_store.engine.log_entries import (
    TOKENS_KEPT,
    Absent,
    Commit,
    Condition,
    Expire,
    Fence,
    Pin,
    Present,
    Stage,
    Unpin,
    encode_entry,
)
from evenkeel_store.engine.table_engine import Request
from tests.store.support import (
    GROUP,
    KEYED,
    PLAIN,
    REPLICA,
    WIDER,
    Bench,
    append,
    columns,
    conditional,
    delete,
    upsert,
)

A, B = {"id": 1, "name": "a", "amount": Decimal("1.00")}, {"id": 2, "name": "b", "amount": None}


def test_kinds(bench: Bench) -> None:
    """Upserts replace whole rows; deletes remove rows that exist."""
    assert bench.apply(columns(), upsert([A, B])) == Applied(2)
    assert bench.all() == [A, B]
    bench.apply(upsert([{"id": 1, "name": None, "amount": None}]), delete([2, 99]))
    assert bench.all() == [{"id": 1, "name": None, "amount": None}]


def test_appended_rows_are_all_kept(bench: Bench) -> None:
    """A table without a primary key keeps every row, also equal ones, in log order."""
    bench.apply(columns(PLAIN), append([{"text": "x", "number": 1}] * 2), append([{"text": None, "number": 2}]))
    bench.fold()
    bench.apply(append([{"text": "x", "number": 1}]))
    assert [row["number"] for row in bench.all()] == [1, 1, 2, 1]


@pytest.mark.parametrize("fold", [False, True])
def test_last_of_each_key_wins(bench: Bench, fold: bool) -> None:
    """The last row of a key wins within an entry, within a transaction and across transactions."""
    bench.apply(columns(), upsert([{"id": 1, "name": "first"}, {"id": 1, "name": "second"}, {"id": 2, "name": "x"}]))
    assert bench.names() == {1: "second", 2: "x"}
    bench.apply(delete([1]), upsert([{"id": 1, "name": "third"}]), upsert([{"id": 2, "name": "y"}]), delete([2]))
    if fold:
        bench.fold()
    assert bench.names() == {1: "third"}


@pytest.mark.parametrize(
    ("condition", "rows", "held"),
    [
        (Absent(), [3, 4], True),
        (Absent(), [2, 3], False),
        (Present(), [1, 2, 2], True),
        (Present(), [1, 3], False),
        (Fence("owner", 5), [1], True),
        (Fence("owner", 6), [1], True),
        (Fence("owner", 4), [1], False),
        (Fence("other", 1), [1], True),
    ],
)
def test_conditional(bench: Bench, condition: Condition, rows: list[int], held: bool) -> None:
    """A conditional entry is applied only if its condition holds; its write token stores the result."""
    bench.apply(columns(), upsert([A, B]), conditional([], Fence("owner", 5), token=("w", 1)))
    bench.apply(conditional([{"id": row, "name": "new"} for row in rows], condition, token=("w", 2)))
    written = [row for row, name in bench.names().items() if name == "new"]
    assert written == (sorted(set(rows)) if held else [])
    assert (bench.group.tokens.result("w", 2) == "") is held


def test_conditions_see_earlier_entries_of_their_transaction(bench: Bench) -> None:
    """A condition sees rows of earlier entries in the same transaction, and not of later ones."""
    bench.apply(
        columns(),
        upsert([A]),
        conditional([A | {"name": "no"}], Absent(), token=("w", 1)),
        delete([1]),
        conditional([A | {"name": "yes"}], Absent(), token=("w", 2)),
        upsert([B]),
    )
    assert bench.names() == {1: "yes", 2: "b"}
    assert bench.group.tokens.result("w", 1) == "exists: 1 of the keys are there"


def test_token_is_applied_once(bench: Bench) -> None:
    """A token logged again changes nothing, in the same transaction, a later one, or after a restart."""
    entry = upsert([A], token=("w", 1))
    bench.apply(columns(), entry, delete([1]), entry)
    assert bench.ids() == []
    bench.apply(entry)
    bench.engine.reopen()
    bench.apply(entry)
    assert bench.ids() == []
    bench.apply(upsert([A], token=("w", 2)), upsert([B], token=("v", 1)))
    assert bench.ids() == [1, 2]


def test_forgotten_token_is_not_applied(bench: Bench) -> None:
    """A token older than the last 1,024 of its writer is not applied; order within them does not matter."""
    many = [upsert([A], token=("w", number)) for number in range(2, TOKENS_KEPT + 3) if number != 500]
    bench.apply(columns(), *many, delete([1]))
    bench.apply(upsert([A], token=("w", 1)))
    assert bench.ids() == []
    bench.apply(upsert([A], token=("w", 500)))
    assert bench.ids() == [1]


def test_writers_expire_by_an_entry(bench: Bench) -> None:
    """An `Expire` entry forgets silent writers, so their old tokens are applied again."""
    bench.apply(columns(), upsert([A], token=("old", 1), at=100), upsert([A], token=("new", 1), at=200))
    bench.apply(encode_entry(Expire(writers=100)), delete([1]))
    assert (len(bench.group.tokens), bench.group.tokens.result("new", 1)) == (1, "")
    bench.apply(upsert([A], token=("new", 1), at=300))
    assert bench.ids() == []
    bench.apply(upsert([A], token=("old", 1), at=300))
    assert bench.ids() == [1]


@pytest.mark.parametrize("first", [0, 1, 2, 4, 5])
def test_only_the_next_index_is_applied(bench: Bench, first: int) -> None:
    """A request that repeats or skips entries is refused, and names the next index."""
    bench.apply(columns(), upsert([A]))
    answer = bench.engine.apply([bench.request(upsert([B]), first=first or 99)])
    assert answer == [Failed(f"group 7 stops before {first or 99}: 2 is applied, so 3 is the next")]
    assert bench.ids() == [1]


def test_indexes_without_entries(bench: Bench) -> None:
    """Indexes of raft's own entries count as applied."""
    entries = [LoggedEntry(2, columns()), LoggedEntry(5, upsert([A]))]
    assert bench.engine.apply([Request(GROUP, REPLICA, Apply(1, 9, entries))]) == [Applied(9)]
    assert bench.engine.apply([Request(GROUP, REPLICA, Apply(10, 10, []))]) == [Applied(10)]


def test_requests_share_a_transaction(bench: Bench) -> None:
    """Waiting requests of several groups are applied together, and each gets its group's applied index."""
    bench.open(8, 1)
    requests = [
        bench.request(columns(), upsert([A])),
        bench.request(columns(PLAIN), group=8, replica=1),
        bench.request(upsert([B]), first=3),
        bench.request(append([{"text": "x"}]), group=8, replica=1, first=2),
    ]
    assert bench.engine.apply(requests) == [Applied(3), Applied(2), Applied(3), Applied(2)]
    assert (bench.ids(), len(bench.all(8))) == ([1, 2], 1)


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"\xff\xff\xff\xff",
        b"\x01\x00\x00\x00\xc1",
        encode_entry(Stage()),
        encode_entry(Commit()),
        upsert([A])[:-40],
        upsert([A], WIDER),
    ],
    ids=["empty", "length", "no msgpack", "stage", "commit", "cut", "columns"],
)
def test_entry_that_cannot_be_applied_stops_its_group_alone(bench: Bench, bad: bytes) -> None:
    """A failed request leaves nothing behind, and the other groups of the transaction are applied."""
    bench.open(8, 1)
    bench.apply(columns())
    one, other = bench.engine.apply([bench.request(upsert([A]), bad), bench.request(columns(), group=8, replica=1)])
    assert isinstance(one, Failed)
    assert one.detail.startswith("group 7 stops before 2: ")
    assert other == Applied(1)
    assert bench.ids() == []
    assert bench.apply(upsert([B])) == Applied(2)


def test_failure_after_rows_were_inserted_rolls_back(bench: Bench) -> None:
    """A group that fails after a condition flushed its rows leaves nothing; the others are applied again."""
    bench.open(8, 1)
    bench.apply(columns())
    bad = [upsert([A]), conditional([B], Absent(), token=("w", 1)), encode_entry(Stage())]
    answers = bench.engine.apply([bench.request(*bad), bench.request(columns(), upsert([B]), group=8, replica=1)])
    assert [type(answer) for answer in answers] == [Failed, Applied]
    assert (bench.ids(), bench.ids(8), bench.group.tokens.result("w", 1)) == ([], [2], None)


def test_new_replica_begins_empty(bench: Bench) -> None:
    """A new replica has nothing of its predecessor; a late request to destroy that one does not affect it."""
    bench.apply(columns(), upsert([A]))
    assert isinstance(bench.engine.apply([Request(GROUP, 4, Apply(3, 3, []))])[0], Failed)
    assert bench.engine.open(GROUP, 4, table="orders.1", partition=0) == Opened(0, "empty")
    assert bench.group.layout is None
    bench.engine.destroy(GROUP, REPLICA)
    assert bench.group.metadata.replica == 4
    bench.engine.destroy(GROUP, 4)
    assert bench.engine.groups == {}


def test_destroyed_data_is_gone(bench: Bench) -> None:
    """A destroyed group leaves no table and no row in the log, and its space is freed."""
    bench.open(8, 1)
    bench.apply(columns(), group=8, replica=1)
    bench.apply(
        columns(changes=True), *(upsert([{"id": n, "name": f"secret{n}" * 50} for n in range(9000)]) for _ in "ab")
    )
    bench.fold()
    bench.apply(upsert([A]))
    cursor = bench.engine.database.cursor()
    used = "SELECT used_blocks FROM pragma_database_size()"
    bench.engine.database.checkpoint(always=True)
    [(before,)] = cursor.execute(used).fetchall()
    bench.engine.destroy(GROUP, REPLICA)
    bench.engine.database.checkpoint(always=True)
    [(after,)] = cursor.execute(used).fetchall()
    assert after < before / 5
    tables = {name for (name,) in cursor.execute("SELECT table_name FROM duckdb_tables()").fetchall()}
    layout = bench.engine.groups[8].layout
    assert layout is not None
    assert tables == {"journal", "heads", layout.rows, layout.old, layout.log}
    assert cursor.execute(f"SELECT count(*) FROM {layout.log}").fetchall() == [(0,)]
    cursor.close()
    bench.engine.reopen()
    assert list(bench.engine.groups) == [8]


# Columns


def test_columns_are_added_to_rows_that_exist(bench: Bench) -> None:
    """Folded rows, logged rows and later rows without the new column all have its default."""
    bench.apply(columns(), upsert([A]))
    bench.fold()
    bench.apply(upsert([B]))
    bench.apply(columns(WIDER), upsert([{"id": 3, "name": "c"}]), upsert([{"id": 4, "note": "own"}], WIDER))
    notes = {row["id"]: row["note"] for row in bench.all()}
    assert notes == {1: "it's new", 2: "it's new", 3: "it's new", 4: "own"}
    bench.fold()
    assert {row["id"]: row["note"] for row in bench.all()} == notes
    assert bench.apply(columns(KEYED)) == Applied(7)
    assert bench.group.metadata.schema == WIDER


def test_groups_share_logs_by_type(bench: Bench) -> None:
    """Groups with the same column types share a log; an unused log is dropped."""
    bench.open(8, 1)
    bench.apply(columns(), upsert([A]))
    bench.apply(columns(), upsert([B]), group=8, replica=1)
    assert bench.group.metadata.log == bench.engine.groups[8].metadata.log
    bench.apply(columns(WIDER))
    bench.apply(columns(WIDER), group=8, replica=1)
    assert bench.group.metadata.log == bench.engine.groups[8].metadata.log
    assert (bench.ids(), bench.ids(8)) == ([1], [2])
    with bench.engine.database.cursor() as cursor:
        logs = cursor.execute("SELECT table_name FROM duckdb_tables() WHERE table_name LIKE 'log_%'").fetchall()
    assert len(logs) == 1


# Pins


@pytest.mark.parametrize("folds", range(8))
def test_pinned_rows_stay_as_they_were(bench: Bench, folds: int) -> None:
    """A pin shows the rows at its index whenever folding happens, despite later changes and deletions."""

    def maybe_fold(bit: int) -> None:
        if folds & bit:
            bench.fold()

    bench.apply(columns(), upsert([A, B]))
    maybe_fold(1)
    bench.apply(upsert([{"id": 3, "name": "c"}]), encode_entry(Pin("one", 0, 0)))
    bench.apply(upsert([A | {"name": "a2"}]), delete([2]), upsert([{"id": 4, "name": "d"}]))
    maybe_fold(2)
    bench.apply(encode_entry(Pin("two", 0, 0)), upsert([A | {"name": "a3"}, B | {"name": "b3"}]), delete([3, 4]))
    maybe_fold(4)
    pins = {name: pin.index for name, pin in bench.group.metadata.pins.items()}
    assert bench.names(at=pins["one"]) == {1: "a", 2: "b", 3: "c"}
    assert bench.names(at=pins["two"]) == {1: "a2", 3: "c", 4: "d"}
    assert bench.names() == {1: "a3", 2: "b3"}


def test_old_rows_are_deleted_with_their_pin(bench: Bench) -> None:
    """Rows kept for a pin are deleted once the pin is gone, and not before."""
    bench.apply(columns(), upsert([A]), encode_entry(Pin("p", 10, 0)), upsert([B]), encode_entry(Pin("q", 30, 0)))
    bench.apply(delete([1, 2]))
    bench.fold()
    assert bench.group.layout is not None
    count = f"SELECT count(*) FROM {bench.group.layout.old}"
    cursor = bench.engine.database.cursor()
    assert cursor.execute(count).fetchall() == [(3,)]
    bench.apply(encode_entry(Expire(pins=20)))
    bench.fold()
    assert cursor.execute(count).fetchall() == [(2,)]
    assert bench.ids(at=bench.group.metadata.pins["q"].index) == [1, 2]
    bench.apply(encode_entry(Unpin("q")), encode_entry(Unpin("never was")))
    bench.fold()
    assert cursor.execute(count).fetchall() == [(0,)]
    cursor.close()


def test_renewed_pin_keeps_its_index(bench: Bench) -> None:
    """Renewing a pin prolongs it, and never shortens or moves it."""
    bench.apply(columns(), encode_entry(Pin("p", 50, 0)), encode_entry(Pin("p", 80, 0)), encode_entry(Pin("p", 20, 0)))
    assert bench.group.metadata.pins == {"p": PinnedAt(2, 80)}
    bench.apply(encode_entry(Expire(pins=79)))
    assert list(bench.group.metadata.pins) == ["p"]


def test_expired_pin_does_not_come_back(bench: Bench) -> None:
    """The names of the last expired pins cannot be reused; the name of a removed pin can."""
    bench.apply(columns(), *(encode_entry(Pin(f"p{number}", number, 0)) for number in range(1, ENDED_KEPT + 3)))
    bench.apply(encode_entry(Unpin("p2")), encode_entry(Expire(pins=ENDED_KEPT + 1)))
    again = ["p1", "p2", f"p{ENDED_KEPT + 1}", f"p{ENDED_KEPT + 2}"]
    bench.apply(*(encode_entry(Pin(name, 10_000, 0)) for name in again))
    assert sorted(bench.group.metadata.pins) == ["p2", f"p{ENDED_KEPT + 2}"]
    bench.apply(encode_entry(Pin("q", 1, 0)), encode_entry(Expire(pins=1)), encode_entry(Pin("p1", 10_000, 0)))
    assert "p1" in bench.group.metadata.pins, "a later expired name has replaced it"


def test_held_index_is_like_a_pin(bench: Bench) -> None:
    """A held index shows the same rows until it is released, whatever is folded."""
    bench.apply(columns(), upsert([A, B]))
    with bench.group.holding() as index:
        bench.apply(delete([1]), upsert([B | {"name": "later"}]))
        bench.fold()
        assert bench.names(at=index) == {1: "a", 2: "b"}
    bench.apply(delete([2]))
    bench.fold()
    assert bench.group.layout is not None
    with bench.engine.database.cursor() as cursor:
        assert cursor.execute(f"SELECT count(*) FROM {bench.group.layout.old}").fetchall() == [(0,)]


# Changes


@pytest.mark.parametrize("fold", [False, True])
def test_changes_are_kept_in_order(bench: Bench, fold: bool) -> None:
    """Every logged row is kept with index, position and operation, also overwritten ones."""
    bench.apply(columns(changes=True), upsert([A, B, A]), delete([2]))
    if fold:
        bench.fold()
    bench.apply(upsert([B]))
    assert bench.changes() == [(2, 0, 0, 1), (2, 1, 0, 2), (2, 2, 0, 1), (3, 0, 1, 2), (4, 0, 0, 2)]


def test_changes_expire_by_an_entry(bench: Bench) -> None:
    """Changes up to the index in an `Expire` entry are deleted once they are folded."""
    bench.apply(columns(changes=True), upsert([A]), upsert([B]), upsert([A]), encode_entry(Expire(changes=3)))
    bench.fold()
    assert (bench.group.metadata.forgotten, [change[0] for change in bench.changes()]) == (3, [4])
    bench.apply(encode_entry(Expire(changes=99)))
    assert bench.group.metadata.forgotten == 5


def test_changes_are_switched(bench: Bench) -> None:
    """Changes are kept from the entry that turns them on until the one that turns them off."""
    bench.apply(columns(), upsert([A]), columns(changes=True))
    assert bench.group.metadata.forgotten == 3
    bench.apply(upsert([B]))
    bench.fold()
    assert [change[0] for change in bench.changes() if change[0] > 3] == [4]
    bench.apply(columns(changes=False), upsert([A]))
    bench.fold()
    with pytest.raises(duckdb.CatalogException):
        bench.changes()
    assert bench.ids() == [1, 2]


# Hashes


def test_hash_sees_rows_and_nothing_else(bench: Bench) -> None:
    """Equal rows have equal hashes, however they were written and stored; another value changes the hash."""
    bench.open(8, 1)
    bench.apply(columns(), upsert([A]), upsert([B]), upsert([{"id": 9}]), delete([9]))
    bench.apply(columns(changes=True), upsert([B, A | {"name": "x"}]), upsert([A]), group=8, replica=1)
    bench.fold(8)
    assert bench.hash() == bench.hash(8)
    assert bench.hash().startswith("2:")
    bench.apply(upsert([A | {"amount": Decimal("1.01")}]), group=8, replica=1)
    assert bench.hash() != bench.hash(8)


# Restarts and failures


def test_restart_finds_everything(bench: Bench) -> None:
    """A restart finds metadata, tokens, pins, fences and rows, folded or not."""
    bench.apply(columns(changes=True), upsert([A], token=("w", 1)), encode_entry(Pin("p", 5, 0)))
    bench.apply(conditional([B], Fence("f", 3), token=("w", 2)))
    bench.fold()
    bench.apply(upsert([{"id": 3, "name": "c"}], token=("w", 3)))
    before = (bench.group.kept(), bench.all(), bench.all(at=3), bench.changes(), bench.group.unfolded)
    bench.engine.reopen()
    assert (bench.group.kept(), bench.all(), bench.all(at=3), bench.changes(), bench.group.unfolded) == before


def test_journal_stays_short(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal is replaced by the groups' state when it is long, without losing anything."""
    monkeypatch.setattr("evenkeel_store.engine.journal._MAX_LENGTH", 5)
    bench.open(8, 1)
    bench.apply(columns())
    for number in range(20):
        bench.apply(upsert([A], token=("w", number)))
        with bench.engine.database.cursor() as cursor:
            [(length,)] = cursor.execute("SELECT count(*) FROM journal").fetchall()
        assert length <= 5
    bench.engine.destroy(8, 1)
    kept = bench.group.kept()
    bench.engine.reopen()
    assert bench.group.kept() == kept
    assert list(bench.engine.groups) == [GROUP]


def test_full_disk_stops_before_anything_is_written(tmp_path: Path) -> None:
    """On a full disk groups stop and reads work; refused entries are applied once there is room."""
    full = ""
    bench = Bench(tmp_path / "data", full=lambda: full)
    bench.open()
    bench.apply(columns(), upsert([A]))
    full = "no room: 3 bytes left"
    assert bench.apply(upsert([B])) == Failed("group 7 stops before 3: no room: 3 bytes left")
    assert bench.ids() == [1]
    full = ""
    assert bench.apply(upsert([B])) == Applied(3)
    bench.close()


def test_damage_is_remembered_until_restored(bench: Bench) -> None:
    """A damaged group reports the damage when it is opened, also after a restart, and applies nothing."""
    bench.apply(columns(), upsert([A]))
    bench.engine.mark_damaged(GROUP, "bad block")
    bench.engine.reopen()
    assert bench.engine.open(GROUP, REPLICA, table="orders.1", partition=0) == Opened(0, "damaged", "bad block")
    assert bench.apply(upsert([B])) == Failed("group 7 stops before 3: its rows are damaged: bad block")


def test_damaged_group_takes_the_log_from_its_beginning(bench: Bench) -> None:
    """A damaged group that gets the log from index 1 drops its rows and applies everything again."""
    log = [columns(), upsert([A]), upsert([B])]
    bench.apply(*log)
    bench.engine.mark_damaged(GROUP, "bad block")
    assert bench.engine.apply([bench.request(*log, first=1)]) == [Applied(3)]
    assert bench.group.metadata.damage == ""
    assert bench.group.unfolded == 2
    bench.engine.reopen()
    assert (bench.group.metadata.applied, bench.group.unfolded) == (3, 2)


def test_row_counts(bench: Bench) -> None:
    """The counts of rows are right after applying, folding, a restart and new columns."""
    counts = []

    def note() -> None:
        counts.append((bench.group.unfolded, bench.group.folded, bench.group.is_folded, bench.group.estimated_rows))

    bench.apply(columns(), upsert([A, B]))
    note()
    bench.fold()
    note()
    bench.apply(upsert([A]), columns(WIDER))
    note()
    bench.engine.reopen()
    note()
    assert counts == [(2, 0, False, 2), (0, 2, True, 2), (1, 2, False, 3), (1, 2, False, 3)]
