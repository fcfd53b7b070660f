"""SQL over tables, run by DuckDB in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from importlib import import_module
from typing import Any, Final

import msgspec
import pyarrow as pa

from evenkeel.errors import InvalidInputError, RequestError, UnknownTableError

__all__ = ["run_query"]

_ALLOWED: Final = ("SELECT", "EXPLAIN", "PRAGMA")
_ALL: Final = "*"
"""Stands for all tables, which `show tables` lists; not a valid table name."""


def run_query(
    query: str,
    *,
    tables: Callable[[], list[str]],
    schema: Callable[[str], pa.Schema],
    rows: Callable[[str], pa.Table],
    pool: ThreadPoolExecutor,
) -> pa.Table:
    """Run a query; `rows` fetches a table that it names, `schema` describes one that it only lists."""
    if not isinstance(query, str):
        raise RequestError(f"not a query: got {query!r}; allowed: one SELECT, as text")
    try:
        duckdb: Any = import_module("duckdb")
    except ModuleNotFoundError:
        raise InvalidInputError("SQL needs duckdb: pip install 'evenkeel-operator[client]'") from None
    known: list[str] = []
    # Otherwise DuckDB would resolve Python variables as tables.
    with duckdb.connect(config={"python_enable_replacements": False}) as connection:
        try:
            _check(connection, query)
            named = {name.casefold() for name in _names(connection, query)}
            known = tables() if named else []
            for name in sorted(known):
                if name.casefold() in named:
                    connection.register(name, rows(name))
                elif _ALL in named:
                    connection.register(name, schema(name).empty_table())
            return _interruptible(connection, lambda: connection.sql(query).to_arrow_table(), pool)
        except duckdb.CatalogException as error:
            if "Table with name" not in str(error):
                raise RequestError(str(error)) from None
            missing = str(error).partition("\n")[0]
            raise UnknownTableError(f"{missing} There are: {', '.join(sorted(known)) or 'none'}") from None
        except duckdb.ParserException as error:
            raise RequestError(f"not a query: {error}") from None
        except duckdb.Error as error:
            raise RequestError(str(error)) from None


def _check(connection: Any, query: str) -> None:
    """Reject statements that are not queries: SQL does not write."""
    kinds = [statement.type.name for statement in connection.extract_statements(query)]
    if len(kinds) != 1 or kinds[0] not in _ALLOWED:
        got = " and ".join(kinds) or "nothing"
        raise RequestError(f"not a query: got {got}; allowed: one SELECT, EXPLAIN or SHOW statement")


def _names(connection: Any, query: str) -> set[str]:
    """Return the names of the tables that a query reads, and possibly of its common table expressions."""
    [(tree,)] = connection.execute("SELECT json_serialize_sql(CAST(? AS VARCHAR))", [query]).fetchall()
    parsed = msgspec.json.decode(tree)
    if parsed["error"]:
        found: set[str] = connection.get_table_names(query)
        return found
    return set(_base_tables(parsed))


def _base_tables(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if node.get("show_type") == "SHOW_SPECIAL" or node.get("schema_name") == "information_schema":
            yield _ALL
        elif node.get("type") in ("BASE_TABLE", "SHOW_REF"):
            yield node["table_name"].strip('"')
        node = list(node.values())
    if isinstance(node, list):
        for inner in node:
            yield from _base_tables(inner)


def _interruptible(connection: Any, work: Callable[[], pa.Table], pool: ThreadPoolExecutor) -> pa.Table:
    """Run on another thread, so that Ctrl-C can interrupt a long query."""
    running = pool.submit(work)
    try:
        return running.result()
    except BaseException:
        connection.interrupt()
        wait([running])
        raise
