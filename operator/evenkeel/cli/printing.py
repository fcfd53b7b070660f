"""How results are printed: tables and colour in a terminal, plain columns in a pipe, JSON where it is asked for."""

from __future__ import annotations

import enum
import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

__all__ = ["Output", "columns", "console", "print_json", "print_table", "styled"]


class Output(enum.StrEnum):
    """How a result is printed."""

    TABLE = "table"
    JSON = "json"


_STYLES = {
    "True": "green",
    "Ready": "green",
    "Stable": "green",
    "connected": "green",
    "running": "green",
    "False": "yellow",
    "CatchingUp": "yellow",
    "Locked": "yellow",
    "Joint": "yellow",
    "Waiting": "yellow",
    "Leaderless": "bold red",
    "down": "bold red",
    "lost": "bold red",
}


def console() -> Console:
    """Where people look."""
    return Console(highlight=False, soft_wrap=not sys.stdout.isatty())


def styled(cell: str) -> Text:
    """A cell in the colour of what it says."""
    return Text(cell, style=_STYLES.get(cell, ""))


def print_json(value: Any) -> None:
    """For programs."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def columns(head: Sequence[str], rows: Iterable[Sequence[object]]) -> RichTable:
    """A table without lines, as kubectl prints them."""
    table = RichTable(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    for name in head:
        table.add_column(name, overflow="fold" if name in ("REASON", "MESSAGE", "WHY") else "ellipsis")
    for row in rows:
        table.add_row(*(styled(str(cell)) for cell in row))
    return table


def print_table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Columns for people, tab-free plain text in a pipe."""
    lines = [list(head), *([str(cell) for cell in row] for row in rows)]
    if sys.stdout.isatty():
        console().print(columns(head, lines[1:]))
        return
    widths = [max(len(line[at]) for line in lines) for at in range(len(head))]
    for cells in lines:
        line = "   ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        sys.stdout.write(line.rstrip() + "\n")
