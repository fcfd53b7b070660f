"""Requests become SQL over a group's tables, answered in bounded batches as of one index."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from evenkeel.errors import FilterError, RequestError, RetentionError, UnavailableError, UnknownColumnError
from evenkeel.rows.row_schema import ColumnDef, RowSchema
from evenkeel.rows.row_values import from_json
from evenkeel.wire.flight import Aggregate, ReadRequest
from evenkeel_store.engine.group_state import Group
from evenkeel_store.engine.log_entries import Expire, Upsert, encode_entry
from evenkeel_store.engine.row_reader import Query, RowReader
from evenkeel_store.engine.table_layout import TableLayout
from evenkeel_store.serving.scans import IDLE_SECONDS, Scanner, ScanResult
from tests.store.support import KEYED, PLAIN, WIDER, Bench, append, columns, delete, rows_of, upsert

ROWS: list[dict[str, Any]] = [
    {"id": 1, "name": "anna", "amount": Decimal("10.00")},
    {"id": 2, "name": "bert", "amount": Decimal("2.50")},
    {"id": 3, "name": "it's", "amount": None},
    {"id": 4, "name": None, "amount": Decimal("-1.00")},
]


@pytest.fixture
def scanner(bench: Bench) -> Scanner:
    return Scanner(bench.rows)


def request(**fields: Any) -> ReadRequest:
    """Return a request decoded from JSON, as it arrives."""
    return msgspec.json.decode(msgspec.json.encode({"table": "orders", "partition": 0} | fields), type=ReadRequest)


def rows(result: ScanResult) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pa.Table.from_batches(result, result.schema).to_pylist()
    return found


def ids(result: ScanResult) -> list[int]:
    return sorted(row["id"] for row in rows(result))


@pytest.mark.parametrize("fold", [False, True])
@pytest.mark.parametrize(
    ("given", "found"),
    [
        (None, [1, 2, 3, 4]),
        (["=", "id", 2], [2]),
        (["!=", "name", "anna"], [2, 3]),
        (["<", "amount", "2.50"], [4]),
        (["<=", "amount", "2.50"], [2, 4]),
        ([">", "amount", "2.49"], [1, 2]),
        ([">=", "amount", 10], [1]),
        (["in", "id", [1, 4, 9]], [1, 4]),
        (["in", "id", []], []),
        (["is_null", "name"], [4]),
        (["not", ["is_null", "amount"]], [1, 2, 4]),
        (["and", [">", "id", 1], ["<", "id", 4]], [2, 3]),
        (["or", ["=", "id", 1], ["and", ["=", "id", 4], ["is_null", "name"]]], [1, 4]),
        (["starts_with", "name", "a"], [1]),
        (["ends_with", "name", "t"], [2]),
        (["contains", "name", "'"], [3]),
        (["=", "name", "' OR true --"], []),
    ],
)
def test_filters(bench: Bench, scanner: Scanner, given: Any, found: list[int], fold: bool) -> None:
    """A filter selects the same rows in the log and in the folded table."""
    bench.apply(columns(), upsert(ROWS[:2]), upsert([{"id": 3}, {"id": 9}]))
    if fold:
        bench.fold()
    bench.apply(upsert(ROWS[2:]), delete([9]))
    assert ids(scanner.scan(bench.group, request(filter=given))) == found


TYPED = RowSchema(
    tuple(
        ColumnDef(f"c_{kind.partition('(')[0]}", kind)
        for kind in (
            *("bool", "int8", "int16", "int32", "int64", "float32", "float64"),
            *("string", "bytes", "date", "timestamp", "decimal(38,3)"),
        )
    )
)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("c_bool", True),
        ("c_int8", -128),
        ("c_int64", -(1 << 63)),
        ("c_float32", 0.5),
        ("c_float64", "inf"),
        ("c_string", "é\u0000x"),
        ("c_bytes", "00ff"),
        ("c_date", "0001-01-01"),
        ("c_timestamp", "9999-12-31T23:59:59.999999+00:00"),
        ("c_decimal", "12345678901234567890123456789012345.678"),
    ],
)
def test_every_type_comes_back_and_can_be_compared(
    bench: Bench, scanner: Scanner, column: str, value: bool | float | str
) -> None:
    """A value of any type is found by an equality filter and returned exactly."""
    kind = TYPED.column(column)
    assert kind is not None
    held = from_json(kind.type, value)
    bench.apply(columns(TYPED), encode_entry(Upsert("", 0, TYPED.version, 0), rows_of(TYPED, [{column: held}, {}])))
    for _ in range(2):
        [found] = rows(scanner.scan(bench.group, request(filter=["=", column, value])))
        assert found == dict.fromkeys(TYPED.names) | {column: held}
        bench.fold()
    assert isinstance(held, bool | int | float | str | bytes | date | datetime | Decimal)


@pytest.mark.parametrize(
    ("fields", "error", "said"),
    [
        ({"filter": ["=", "nmae", 1]}, UnknownColumnError, "no column nmae; there are: id, name, amount"),
        ({"filter": "id = 1"}, FilterError, "begins with an operator"),
        ({"filter": []}, FilterError, "begins with an operator"),
        ({"filter": ["like", "name", "x"]}, FilterError, "unknown filter operator like; allowed: and, or, not, ="),
        ({"filter": ["=", "id"]}, FilterError, "`=` takes a column and a value"),
        ({"filter": ["=", "id", "1"]}, FilterError, "column id: '1' is not an integer"),
        ({"filter": ["=", "id", 1 << 63]}, FilterError, "is not an integer in range"),
        ({"filter": ["=", "id", None]}, FilterError, 'write ["is_null", "id"]'),
        ({"filter": ["in", "id", 5]}, FilterError, "a list of at most 1000"),
        ({"filter": ["in", "id", list(range(1001))]}, FilterError, "a list of at most 1000"),
        ({"filter": ["starts_with", "id", "x"]}, FilterError, "needs a column of type string"),
        ({"filter": ["not", ["is_null", "id"], ["is_null", "id"]]}, FilterError, "takes one filter"),
        ({"filter": ["and"]}, FilterError, "needs filters"),
        ({"columns": ["x"]}, UnknownColumnError, "no column x"),
        ({"columns": ["$index"]}, UnknownColumnError, "no column $index"),
        ({"columns": []}, RequestError, "name at least one"),
        ({"aggregates": [{"function": "sum", "column": "name"}]}, FilterError, "has no sum"),
        ({"aggregates": [{"function": "min"}]}, FilterError, "needs a column"),
        ({"after": [1, 2]}, RequestError, "after takes 1 values"),
        ({"up_to": ["x"]}, RequestError, "up_to: 'x' is not an integer"),
        ({"changes_after": 0}, RequestError, "keeps no changes"),
    ],
)
def test_wrong_requests(
    bench: Bench, scanner: Scanner, fields: dict[str, Any], error: type[Exception], said: str
) -> None:
    """An invalid request is refused with its reason, and the next one is answered."""
    bench.apply(columns(), upsert(ROWS))
    with pytest.raises(error) as refused:
        rows(scanner.scan(bench.group, request(**fields)))
    assert said in str(refused.value)
    assert type(refused.value) is error
    assert ids(scanner.scan(bench.group, request())) == [1, 2, 3, 4]


def test_deep_filter(bench: Bench, scanner: Scanner) -> None:
    """A filter that is nested too deeply is refused."""
    given: Any = ["is_null", "id"]
    for _ in range(60):
        given = ["not", given]
    bench.apply(columns())
    with pytest.raises(FilterError, match="at most 50 deep"):
        scanner.scan(bench.group, request(filter=given))


def test_columns(bench: Bench, scanner: Scanner) -> None:
    """Columns are returned in the requested order, also twice."""
    bench.apply(columns(), upsert(ROWS[:1]))
    result = scanner.scan(bench.group, request(columns=["amount", "id", "amount"]))
    assert result.schema.names == ["amount", "id", "amount"]
    [batch] = result
    assert [column.to_pylist() for column in batch.columns] == [[Decimal("10.00")], [1], [Decimal("10.00")]]


def test_aggregates(bench: Bench, scanner: Scanner) -> None:
    """Aggregates are computed in the store, over all rows or by group."""
    bench.apply(columns(), upsert(ROWS), upsert([{"id": 5, "name": "anna", "amount": Decimal("0.50")}]))
    figures = [
        Aggregate(function="count"),
        Aggregate(function="count", column="name"),
        Aggregate(function="sum", column="amount", name="total"),
        Aggregate(function="sum", column="id"),
        Aggregate(function="min", column="name"),
        Aggregate(function="max", column="amount"),
    ]
    [found] = rows(scanner.scan(bench.group, request(aggregates=[msgspec.to_builtins(figure) for figure in figures])))
    assert found == {
        "count": 5,
        "count_name": 4,
        "total": Decimal("12.00"),
        "sum_id": Decimal(15),
        "min_name": "anna",
        "max_amount": Decimal("10.00"),
    }
    grouped = scanner.scan(
        bench.group,
        request(group_by=["name"], aggregates=[{"function": "count"}], filter=["starts_with", "name", "a"]),
    )
    assert rows(grouped) == [{"name": "anna", "count": 2}]


@pytest.mark.parametrize("ordered", [False, True])
def test_scan_shows_one_moment(bench: Bench, scanner: Scanner, ordered: bool) -> None:
    """A scan returns every row once, as of its start, whatever is written and folded, and blocks nothing."""
    total = 150_000
    for first in range(0, total, 50_000):
        bench.apply(
            *([] if first else [columns()]), upsert([{"id": n, "name": "old"} for n in range(first, first + 50_000)])
        )
        if not first:
            bench.fold()
    result = scanner.scan(bench.group, request(ordered=ordered, columns=["id", "name"]))
    batches = [next(result)]
    bench.apply(
        upsert([{"id": number, "name": "new"} for number in range(0, total + 100, 7)]), delete(list(range(999)))
    )
    bench.fold()
    bench.engine.database.checkpoint(always=True)
    assert bench.engine.database.wal_bytes == 0
    bench.apply(columns(WIDER))
    found = pa.Table.from_batches([*batches, *result], result.schema)
    assert batches[0].num_rows < total
    assert pc.unique(found.column("name")).to_pylist() == ["old"]
    seen = found.column("id").to_pylist()
    assert (seen if ordered else sorted(seen)) == list(range(total))
    assert result.index == 4


def test_limits(bench: Bench, scanner: Scanner) -> None:
    """A limit bounds the number of rows."""
    bench.apply(columns(), upsert([{"id": number} for number in range(60)]))
    bench.fold()
    for limit in (0, 1, 59, 99):
        result = scanner.scan(bench.group, request(limit=limit, ordered=True))
        assert [row["id"] for row in rows(result)] == list(range(min(limit, 60)))


def test_key_ranges(bench: Bench, scanner: Scanner) -> None:
    """A range of keys continues after a key, and ends at another."""
    bench.apply(columns(), upsert([{"id": number} for number in range(40)]))
    bench.fold()
    assert ids(scanner.scan(bench.group, request(after=[9], up_to=[12]))) == [10, 11, 12]
    assert ids(scanner.scan(bench.group, request(after=[35]))) == [36, 37, 38, 39]


PAIRS = RowSchema((ColumnDef("a", "string", False), ColumnDef("b", "int32", False)), ("a", "b"), ("a", "b"))


def test_ranges_of_composite_keys(bench: Bench, scanner: Scanner) -> None:
    """Ranges of composite keys follow the order of the columns."""
    pairs = [{"a": a, "b": b} for a in "xyz" for b in range(-5, 5)]
    bench.apply(columns(PAIRS), encode_entry(Upsert("", 0, 2, 0), rows_of(PAIRS, pairs)))
    bench.fold()
    found = rows(scanner.scan(bench.group, request(ordered=True)))
    assert found == pairs
    found = rows(scanner.scan(bench.group, request(ordered=True, after=["x", 3], up_to=["y", -4])))
    assert found == [{"a": "x", "b": 4}, {"a": "y", "b": -5}, {"a": "y", "b": -4}]


def test_rows_without_keys_are_identified_by_index(bench: Bench, scanner: Scanner) -> None:
    """A table without a primary key is scanned in log order, and continues after an index and position."""
    batch = [{"text": "t", "number": number} for number in range(3)]
    bench.apply(columns(PLAIN), *(append(batch) for _ in range(5)))
    bench.fold()
    bench.apply(append(batch))
    result = scanner.scan(bench.group, request(columns=["$index", "$seq", "number"], ordered=True, after=[3, 1]))
    found = [tuple(row.values()) for row in rows(result)]
    assert found == [(3, 2, 2), *((index, place, place) for index in range(4, 8) for place in range(3))]


def test_idle_scan_is_ended(bench: Bench, scanner: Scanner, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scan that is not read for a minute is ended with a reason; one that is read goes on."""
    bench.apply(columns(), upsert([{"id": number} for number in range(150_000)]))
    clock = 0.0
    monkeypatch.setattr("evenkeel_store.serving.scans.time.monotonic", lambda: clock)
    idle, busy = (scanner.scan(bench.group, request()) for _ in range(2))
    next(idle)
    clock = IDLE_SECONDS
    next(busy)
    clock += 1
    scanner.end_idle()
    with pytest.raises(UnavailableError, match="nothing was read for 60 s"):
        next(idle)
    assert sum(batch.num_rows for batch in busy) > 0


def test_scan_releases_its_held_index(bench: Bench, scanner: Scanner) -> None:
    """Once a scan at a held index has begun, the index is released."""
    bench.apply(columns(), upsert([{"id": 1, "name": "old"}]))
    result = scanner.scan(bench.group, request(), held=bench.group.hold())
    assert bench.group.readable() == (2, [])
    bench.apply(upsert([{"id": 1, "name": "new"}]))
    bench.fold()
    assert [row["name"] for row in rows(result)] == ["old"]


@pytest.mark.parametrize("schema", [KEYED, PLAIN])
@pytest.mark.parametrize("fold", [False, True])
def test_scan_at_an_index_from_the_folded_table(
    bench: Bench, scanner: Scanner, monkeypatch: pytest.MonkeyPatch, schema: RowSchema, fold: bool
) -> None:
    """The log is skipped only if the folded table is exactly at the index before and after the query."""
    put = upsert if schema is KEYED else append
    name = "name" if schema is KEYED else "text"
    before = [{"id": 1, "name": "old"}] if schema is KEYED else [{"text": "old", "number": 1}]
    after = [{"id": 1, "name": "new"}] if schema is KEYED else [{"text": "new", "number": 1}]
    asked: list[str] = []
    begin = RowReader.begin

    def noted(self: RowReader, group: Group, ask: Callable[[TableLayout], Query], **more: Any) -> Any:
        def seen(layout: TableLayout) -> Query:
            query = ask(layout)
            asked.append(query.sql)
            if fold and len(asked) == 2:
                bench.apply(put(after))
                bench.fold()
            return query

        return begin(self, group, seen, **more)

    monkeypatch.setattr(RowReader, "begin", noted)

    def read() -> list[str]:
        with bench.group.holding(2) as held:
            found = rows(scanner.scan(bench.group, request(), held=(object(), held)))
        return [row[name] for row in found]

    bench.apply(columns(schema), put(before))
    with bench.group.holding(2):
        assert read() == ["old"]
        assert "log_" in asked[0]
        bench.fold()
        assert read() == ["old"]
        assert "log_" not in asked[1]
        assert ("log_" in asked[-1]) == fold
        bench.apply(put(after))
        assert read() == ["old"]
        bench.fold()
        assert read() == ["old"]
        assert "log_" in asked[-1]


# Changes


@pytest.mark.parametrize("fold", [False, True])
def test_changes(bench: Bench, scanner: Scanner, fold: bool) -> None:
    """Changes are ordered and carry index, position and operation; a deleted row has its key."""
    bench.apply(columns(changes=True), upsert(ROWS[:2]), delete([1]))
    if fold:
        bench.fold()
    bench.apply(upsert(ROWS[:1]))
    result = scanner.scan(bench.group, request(changes_after=1, columns=["id", "name"]))
    assert (result.schema.names, result.index) == (["$index", "$seq", "$op", "id", "name"], 4)
    assert [tuple(row.values()) for row in rows(result)] == [
        (2, 0, "upsert", 1, "anna"),
        (2, 1, "upsert", 2, "bert"),
        (3, 0, "delete", 1, None),
        (4, 0, "upsert", 1, "anna"),
    ]
    assert [row["$index"] for row in rows(scanner.scan(bench.group, request(changes_after=3)))] == [4]
    assert rows(scanner.scan(bench.group, request(changes_after=4))) == []


def test_changes_past_the_newest(bench: Bench, scanner: Scanner) -> None:
    """A position past the newest index is refused; a lagging replica does not move a position back."""
    bench.apply(columns(changes=True), upsert(ROWS[:2]))
    with pytest.raises(RequestError, match="changes after index 3 were requested, but the newest index is 2"):
        scanner.scan(bench.group, request(changes_after=3))
    lagging = scanner.scan(bench.group, request(changes_after=3, max_age=5.0))
    assert (lagging.index, rows(lagging)) == (3, [])


def test_changes_are_cut_between_indexes(bench: Bench, scanner: Scanner) -> None:
    """A limited answer ends with a complete index, at least one, and says where to continue."""
    bench.apply(columns(changes=True), upsert(ROWS[:1]), upsert(ROWS), upsert(ROWS[:1]))
    seen, after = [], 1
    for _ in range(3):
        result = scanner.scan(bench.group, request(changes_after=after, limit=2))
        seen.append((result.index, len(rows(result))))
        after = result.index
    assert seen == [(2, 1), (3, 4), (4, 1)]


def test_changes_below_the_retention(bench: Bench, scanner: Scanner) -> None:
    """A request for expired changes is refused with the first available index."""
    bench.apply(columns(changes=True), upsert(ROWS[:1]), upsert(ROWS), encode_entry(Expire(changes=2)))
    with pytest.raises(
        RetentionError, match="changes after index 1 have expired; the first available index is 3"
    ) as refused:
        scanner.scan(bench.group, request(changes_after=1))
    assert refused.value.first == 3
    assert len(rows(scanner.scan(bench.group, request(changes_after=2)))) == 4


def test_changes_forgotten_while_they_are_read(bench: Bench, scanner: Scanner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Changes that expire before the query begins cause an error instead of a gap."""
    bench.apply(columns(changes=True), upsert(ROWS[:1]), upsert(ROWS))
    begin = bench.rows.begin

    def late(*arguments: Any, **options: Any) -> Any:
        bench.apply(encode_entry(Expire(changes=3)))
        bench.fold()
        return begin(*arguments, **options)

    monkeypatch.setattr(bench.rows, "begin", late)
    with pytest.raises(RetentionError):
        scanner.scan(bench.group, request(changes_after=1))


# Reads while tables change


def test_tables_that_change_during_a_query(bench: Bench) -> None:
    """A query for tables that are no longer the group's is repeated, whether or not they still exist."""
    bench.apply(columns(), upsert(ROWS))
    asked: list[TableLayout] = []

    def ask(layout: TableLayout) -> Query:
        asked.append(layout)
        if len(asked) == 1:
            bench.apply(columns(WIDER))
        elif len(asked) == 2:
            bench.apply(columns(WIDER, changes=True))
        return Query(f"SELECT count(*) FROM ({layout.source(['c0'])})")

    layout, found = bench.rows.read(bench.group, ask)
    assert (len(asked), layout is bench.group.layout, found.column(0).to_pylist()) == (3, True, [4])
    cursor, batches = bench.rows.begin(bench.group, ask, batch_rows=10)
    assert sum(batch.num_rows for batch in batches) == 1
    cursor.close()


def test_readers_see_whole_states(bench: Bench, scanner: Scanner) -> None:
    """Readers see all rows of one index while entries are applied and folded and columns are added."""
    bench.apply(columns(), upsert([{"id": number, "name": "0"} for number in range(50)]))
    stop, problems, reads = threading.Event(), list[Any](), [0]

    def read() -> None:
        while not stop.is_set():
            try:
                found = rows(scanner.scan(bench.group, request(columns=["id", "name"])))
                reads[0] += 1
                if sorted(row["id"] for row in found) != list(range(50)) or len({row["name"] for row in found}) != 1:
                    problems.append(found)
            except Exception as error:
                problems.append(error)
            if problems:
                return

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    wide = list(WIDER.columns)
    for turn in range(1, 25):
        bench.apply(upsert([{"id": number, "name": str(turn)} for number in range(50)]))
        if turn % 3:
            bench.fold()
        if turn % 4 == 0:
            wide.append(ColumnDef(f"more{turn}", "int32"))
            bench.apply(columns(RowSchema(tuple(wide), ("id",), ("id",)), changes=turn % 8 == 0))
    stop.set()
    for thread in threads:
        thread.join()
    assert problems == []
    assert reads[0] > 5
