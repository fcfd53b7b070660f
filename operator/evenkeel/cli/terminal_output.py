"""Standard output: coloured tables in a terminal, plain columns in a pipe, JSON with `-o json`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from evenkeel.cli.options import Output

__all__ = [
    "Listing",
    "columns",
    "console",
    "print_json",
    "print_line",
    "print_result",
    "print_table",
    "size",
    "span",
    "styled",
    "visible",
]


class Listing(NamedTuple):
    """Rows of a table, the same as JSON data, and notes printed below the rows."""

    head: Sequence[str]
    rows: Sequence[Sequence[object]]
    data: Any = None
    notes: Sequence[str] = ()


_STYLES = {
    "True": "green",
    "Ready": "green",
    "Stable": "green",
    "Done": "green",
    "running": "green",
    "False": "yellow",
    "CatchingUp": "yellow",
    "Locked": "yellow",
    "Waiting": "yellow",
    "Running": "yellow",
    "AwaitingApproval": "yellow",
    "draining": "yellow",
    "starting": "yellow",
    "Leaderless": "bold red",
    "Failed": "bold red",
    "down": "bold red",
    "lost": "bold red",
}
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if code != ord("\n")}
"""Control characters, which are escaped: a cell may hold untrusted text."""
_WRAPPED = ("REASON", "MESSAGE", "WHY")


def console() -> Console:
    """Return a console on standard output."""
    return Console(highlight=False, markup=False, soft_wrap=not sys.stdout.isatty())


def print_line(text: str) -> None:
    """Print a line of text."""
    console().print(text, soft_wrap=True)


def print_result(text: str, output: Output, **data: Any) -> None:
    """Print the result of a command: a line of text, or `data` and the text as JSON."""
    if output is Output.JSON:
        print_json({**data, "message": text})
    else:
        print_line(text)


def visible(cell: object) -> str:
    """Return the text of a cell with its control characters escaped."""
    return str(cell).translate(_CONTROLS)


def styled(cell: str) -> Text:
    """Return a cell in the colour of its state."""
    return Text(cell, style=_STYLES.get(cell, ""))


def print_json(value: Any, *, indent: int | None = 2) -> None:
    """Print a value as JSON."""
    sys.stdout.write(json.dumps(value, indent=indent, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def columns(head: Sequence[str], rows: Iterable[Sequence[object]]) -> RichTable:
    """Return a table without borders, like those of kubectl."""
    table = RichTable(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    for name in head:
        table.add_column(name, overflow="fold" if name in _WRAPPED else "ellipsis", no_wrap=name not in _WRAPPED)
    for row in rows:
        table.add_row(*(styled(visible(cell)) for cell in row))
    return table


def print_table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table: styled in a terminal, aligned by spaces in a pipe."""
    lines = [[visible(cell) for cell in line] for line in (head, *rows)]
    if sys.stdout.isatty():
        console().print(columns(lines[0], lines[1:]))
        return
    widths = [max(len(line[at]) for line in lines) for at in range(len(head))]
    for cells in lines:
        line = "   ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        sys.stdout.write(line.rstrip() + "\n")
    sys.stdout.flush()


def size(count: int) -> str:
    """Format a number of bytes, such as 1.5 MiB."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def span(seconds: float) -> str:
    """Format a duration in one unit, like the ages of kubectl."""
    for length, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= 2 * length:
            return f"{int(seconds // length)}{unit}"
    return f"{int(seconds)}s"
