"""Client requests as SQL over a group's tables.

Column names are looked up in the table's schema and replaced by internal names; values become parameters. No text of
a client becomes part of the SQL.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import pyarrow as pa

from evenkeel.errors import FilterError, RequestError, UnknownColumnError
from evenkeel.rows.row_schema import ColumnDef, RowSchema, arrow_type
from evenkeel.rows.row_values import from_json
from evenkeel.wire.flight import Aggregate, ReadRequest
from evenkeel_store.engine.row_reader import Query
from evenkeel_store.engine.table_layout import TableLayout

__all__ = ["CHANGE_COLUMNS", "answer_schema", "changes_query", "lookup_query", "read_query"]

CHANGE_COLUMNS: Final = ("$index", "$seq", "$op")
"""Precede the columns of a change. The first two also identify the rows of a table without a primary key."""

_MAX_IN: Final = 1000
_MAX_DEPTH: Final = 50
_COMPARISONS: Final = {"=": "=", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_TEXT: Final = {"starts_with": "starts_with", "ends_with": "ends_with", "contains": "contains"}
_HIDDEN: Final = {"$index": ("i", pa.int64()), "$seq": ("s", pa.int32())}
_OPS: Final = "CASE op WHEN 0 THEN 'upsert' ELSE 'delete' END"


# Names


def _find(schema: RowSchema, name: str) -> tuple[int, ColumnDef]:
    for place, column in enumerate(schema.columns):
        if column.name == name:
            return place, column
    raise UnknownColumnError(f"the table has no column {name}; there are: {', '.join(schema.names)}")


def _physical(schema: RowSchema, name: str) -> str:
    if name in _HIDDEN and not schema.primary_key:
        return _HIDDEN[name][0]
    return f"c{_find(schema, name)[0]}"


def _field(schema: RowSchema, name: str) -> pa.Field:
    if name in _HIDDEN and not schema.primary_key:
        return pa.field(name, _HIDDEN[name][1], nullable=False)
    column = _find(schema, name)[1]
    return pa.field(name, arrow_type(column.type), column.nullable)


# The schema of the answer


def answer_schema(request: ReadRequest, schema: RowSchema) -> pa.Schema:
    """Return the columns of the answer to a request."""
    if request.aggregates or request.group_by:
        groups = [_field(schema, name).with_nullable(True) for name in request.group_by]
        return pa.schema([*groups, *(_aggregate(aggregate, schema)[1] for aggregate in request.aggregates)])
    names = schema.names if request.columns is None else request.columns
    fields = [_field(schema, name) for name in names]
    if request.changes_after is None:
        return pa.schema(fields)
    metadata = [pa.field(name, kind, False) for name, kind in zip(CHANGE_COLUMNS, _CHANGE_TYPES, strict=True)]
    return pa.schema([*metadata, *(field.with_nullable(True) for field in fields)])


_CHANGE_TYPES: Final = (pa.int64(), pa.int32(), pa.string())


def _aggregate(aggregate: Aggregate, schema: RowSchema) -> tuple[str, pa.Field]:
    """Return an aggregate as SQL, and its field in the answer."""
    function, name = aggregate.function, aggregate.name
    if not aggregate.column:
        if function != "count":
            raise FilterError(f"the aggregate {function} needs a column")
        return "count(*)", pa.field(name or "count", pa.int64())
    place, column = _find(schema, aggregate.column)
    name = name or f"{function}_{column.name}"
    if function == "count":
        return f"count(c{place})", pa.field(name, pa.int64())
    kind = arrow_type(column.type)
    if function == "sum":
        if pa.types.is_integer(kind):
            return f"CAST(sum(c{place}) AS DECIMAL(38,0))", pa.field(name, pa.decimal128(38, 0))
        if pa.types.is_decimal(kind):
            return f"CAST(sum(c{place}) AS DECIMAL(38,{kind.scale}))", pa.field(name, pa.decimal128(38, kind.scale))
        if pa.types.is_floating(kind):
            return f"CAST(sum(c{place}) AS DOUBLE)", pa.field(name, pa.float64())
        raise FilterError(f"column {column.name} is of type {column.type}, which has no sum")
    return f"{function}(c{place})", pa.field(name, kind)


# Queries


def read_query(request: ReadRequest, layout: TableLayout, *, at: int | None = None, folded: bool = False) -> Query:
    """Return a query for rows or aggregates, at the newest index or an earlier one."""
    schema, parameters = layout.schema, list[Any]()
    where = " AND ".join(_conditions(request, layout, parameters)) or "true"
    if request.aggregates or request.group_by:
        groups = [_physical(schema, name) for name in request.group_by]
        aggregates = [_aggregate(aggregate, schema)[0] for aggregate in request.aggregates]
        tail = f" GROUP BY {', '.join(groups)}" if groups else ""
        wanted = [*groups, *aggregates]
    else:
        wanted = [_physical(schema, name) for name in (schema.names if request.columns is None else request.columns)]
        tail = f" ORDER BY {', '.join(layout.keys)}" if request.ordered else ""
    if request.limit is not None:
        tail += f" LIMIT {request.limit}"
    # The same column may be requested twice, and DuckDB needs unique names.
    listed = ", ".join(f"{item} AS x{place}" for place, item in enumerate(wanted))
    source = layout.source(_used(listed, where), at=at, folded=folded)
    return Query(f"SELECT {listed} FROM ({source}) WHERE {where}{tail}", parameters)


def lookup_query(
    names: Sequence[str], layout: TableLayout, keys: pa.Table, *, at: int | None = None, folded: bool = False
) -> Query:
    """Return a query for the rows with these keys; `keys` has the column names of the database."""
    wanted = [_physical(layout.schema, name) for name in names]
    listed = ", ".join(f"{item} AS x{place}" for place, item in enumerate(wanted))
    source = layout.source(wanted, at=at, among="requested", folded=folded)
    return Query(f"SELECT {listed} FROM ({source})", (), {"requested": keys})


def changes_query(request: ReadRequest, layout: TableLayout, *, until: int) -> Query:
    """Return a query for the changes after the request's index, up to `until`."""
    schema, parameters = layout.schema, list[Any]()
    names = schema.names if request.columns is None else request.columns
    wanted = ["i", "s", _OPS, *(f"c{_find(schema, name)[0]}" for name in names)]
    listed = ", ".join(f"{item} AS x{place}" for place, item in enumerate(wanted))
    where = f"i > {request.changes_after} AND i <= {until}"
    if request.filter is not None:
        where += f" AND {_filter(request.filter, schema, parameters)}"
    source = layout.changed(_used(listed, where))
    return Query(f"SELECT {listed} FROM ({source}) WHERE {where} ORDER BY i, s", parameters)


def _used(*sql: str) -> list[str]:
    """Return the columns that occur in SQL, so that no others are read."""
    return sorted({column for part in sql for column in re.findall(r"\bc[0-9]+\b", part)})


def _conditions(request: ReadRequest, layout: TableLayout, parameters: list[Any]) -> list[str]:
    conditions = []
    after, up_to = _key(request.after, layout, "after"), _key(request.up_to, layout, "up_to")
    if after is not None:
        conditions.append(_past(layout, after, parameters))
    if up_to is not None:
        conditions.append(f"NOT {_past(layout, up_to, parameters)}")
    if request.filter is not None:
        conditions.append(_filter(request.filter, layout.schema, parameters))
    return conditions


def _key_types(layout: TableLayout) -> list[str]:
    if not layout.keyed:
        return ["int64", "int32"]
    return [_find(layout.schema, name)[1].type for name in layout.schema.primary_key]


def _key(values: Sequence[Any] | None, layout: TableLayout, field: str) -> list[Any] | None:
    if values is None:
        return None
    types = _key_types(layout)
    if len(values) != len(types) or None in values:
        raise RequestError(f"{field} takes {len(types)} values, one for each column of the key")
    try:
        return [from_json(kind, value) for kind, value in zip(types, values, strict=True)]
    except ValueError as error:
        raise RequestError(f"{field}: {error}") from None


def _past(layout: TableLayout, values: Sequence[Any], parameters: list[Any]) -> str:
    """Return the condition that the key is greater than these values, column by column."""
    duckdb = [ColumnDef("", kind).duckdb for kind in _key_types(layout)]
    alternatives = []
    # Redundant, but with a condition on the first column alone DuckDB can skip whole row groups.
    parameters.append(values[0])
    for place in range(len(values)):
        equal = [f"{layout.keys[earlier]} = CAST(? AS {duckdb[earlier]})" for earlier in range(place)]
        greater = f"{layout.keys[place]} > CAST(? AS {duckdb[place]})"
        alternatives.append("(" + " AND ".join([*equal, greater]) + ")")
        parameters.extend(values[: place + 1])
    return f"({layout.keys[0]} >= CAST(? AS {duckdb[0]}) AND ({' OR '.join(alternatives)}))"


# Filters


def _filter(given: Any, schema: RowSchema, parameters: list[Any], depth: int = 0) -> str:
    if not isinstance(given, list | tuple) or not given or not isinstance(given[0], str):
        raise FilterError(f"a filter is a list that begins with an operator; got {given!r}")
    if depth > _MAX_DEPTH:
        raise FilterError(f"a filter may be nested at most {_MAX_DEPTH} deep")
    operator, *operands = given
    if operator in ("and", "or"):
        if not operands:
            raise FilterError(f"`{operator}` needs filters to join")
        inner = [_filter(operand, schema, parameters, depth + 1) for operand in operands]
        return "(" + f" {operator.upper()} ".join(inner) + ")"
    if operator == "not":
        if len(operands) != 1:
            raise FilterError("`not` takes one filter")
        return f"(NOT {_filter(operands[0], schema, parameters, depth + 1)})"
    return _condition(operator, operands, schema, parameters)


def _condition(operator: str, operands: list[Any], schema: RowSchema, parameters: list[Any]) -> str:
    if operator not in _CONDITIONS:
        known = ", ".join(["and", "or", "not", *_CONDITIONS])
        raise FilterError(f"unknown filter operator {operator}; allowed: {known}")
    make, count = _CONDITIONS[operator]
    if len(operands) != count or not isinstance(operands[0], str):
        raise FilterError(f"`{operator}` takes a column" + (" and a value" if count > 1 else ""))
    place, column = _find(schema, operands[0])
    return make(operator, f"c{place}", column, operands[1:], parameters)


def _value(column: ColumnDef, value: Any) -> Any:
    if value is None:
        raise FilterError(f'comparisons with null never match: write ["is_null", "{column.name}"]')
    try:
        return from_json(column.type, value)
    except (ValueError, TypeError) as error:
        raise FilterError(f"column {column.name}: {error}") from None


def _compare(operator: str, name: str, column: ColumnDef, values: list[Any], parameters: list[Any]) -> str:
    parameters.append(_value(column, values[0]))
    return f"({name} {_COMPARISONS[operator]} CAST(? AS {column.duckdb}))"


def _is_in(operator: str, name: str, column: ColumnDef, values: list[Any], parameters: list[Any]) -> str:
    if not isinstance(values[0], list | tuple) or len(values[0]) > _MAX_IN:
        raise FilterError(f"`in` takes a column and a list of at most {_MAX_IN} values; use a lookup for more keys")
    if not values[0]:
        return "false"
    parameters.extend(_value(column, value) for value in values[0])
    return f"({name} IN ({', '.join([f'CAST(? AS {column.duckdb})'] * len(values[0]))}))"


def _is_null(operator: str, name: str, column: ColumnDef, values: list[Any], parameters: list[Any]) -> str:
    return f"({name} IS NULL)"


def _text(operator: str, name: str, column: ColumnDef, values: list[Any], parameters: list[Any]) -> str:
    if column.type != "string":
        raise FilterError(f"`{operator}` needs a column of type string; {column.name} is of type {column.type}")
    parameters.append(_value(column, values[0]))
    return f"{_TEXT[operator]}({name}, CAST(? AS VARCHAR))"


_Make = Callable[[str, str, ColumnDef, list[Any], list[Any]], str]
_CONDITIONS: Final[dict[str, tuple[_Make, int]]] = {
    **dict.fromkeys(_COMPARISONS, (_compare, 2)),
    "in": (_is_in, 2),
    "is_null": (_is_null, 1),
    **dict.fromkeys(_TEXT, (_text, 2)),
}
