"""Conditions on rows, such as `col("amount") > 5`, in the form that stores evaluate.

Values have the notation of a column's default: dates, timestamps and decimals as text, bytes in hexadecimal. Python
values are converted.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from evenkeel.errors import FilterError
from evenkeel.rows.row_values import to_json

__all__ = ["Column", "Filter", "col", "filter_of"]


class Filter:
    """A condition on rows; combine with `&`, `|` and `~`."""

    __slots__ = ("tree",)

    def __init__(self, tree: list[Any]) -> None:
        self.tree = tree

    def __and__(self, other: Filter) -> Filter:
        return Filter(["and", self.tree, other.tree])

    def __or__(self, other: Filter) -> Filter:
        return Filter(["or", self.tree, other.tree])

    def __invert__(self) -> Filter:
        return Filter(["not", self.tree])

    def __bool__(self) -> bool:
        raise TypeError("a condition on rows has no truth value; combine conditions with &, | and ~")

    def __repr__(self) -> str:
        return f"Filter({self.tree!r})"

    def json(self) -> str:
        """Return the condition as JSON text."""
        return msgspec.json.encode(self.tree).decode()


class Column:
    """A column in a condition."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def _compare(self, op: str, value: Any) -> Filter:
        return Filter([op, self.name, _value(self.name, value)])

    def __eq__(self, value: object) -> Filter:  # type: ignore[override]
        return self._compare("=", value)

    def __ne__(self, value: object) -> Filter:  # type: ignore[override]
        return self._compare("!=", value)

    def __lt__(self, value: Any) -> Filter:
        return self._compare("<", value)

    def __le__(self, value: Any) -> Filter:
        return self._compare("<=", value)

    def __gt__(self, value: Any) -> Filter:
        return self._compare(">", value)

    def __ge__(self, value: Any) -> Filter:
        return self._compare(">=", value)

    __hash__ = None  # type: ignore[assignment]

    def isin(self, values: Iterable[Any]) -> Filter:
        """Match values that are in a list."""
        return Filter(["in", self.name, [_value(self.name, value) for value in values]])

    def is_null(self) -> Filter:
        """Match nulls."""
        return Filter(["is_null", self.name])

    def starts_with(self, text: str) -> Filter:
        """Match text with this prefix."""
        return Filter(["starts_with", self.name, text])

    def ends_with(self, text: str) -> Filter:
        """Match text with this suffix."""
        return Filter(["ends_with", self.name, text])

    def contains(self, text: str) -> Filter:
        """Match text that contains this."""
        return Filter(["contains", self.name, text])


def col(name: str) -> Column:
    """Return a column for use in a condition."""
    return Column(name)


def _value(column: str, value: Any) -> Any:
    try:
        return to_json(value)
    except ValueError as error:
        raise FilterError(f"column {column}: {error}") from None


def filter_of(given: Filter | list[Any] | None) -> list[Any] | None:
    """Return a condition in the form that is sent."""
    if isinstance(given, Filter):
        given = given.tree
    try:
        msgspec.json.encode(given)
    except (TypeError, RecursionError) as error:
        raise FilterError(f"not a condition; allowed: one like col('id') == 1: {error}") from None
    return given
