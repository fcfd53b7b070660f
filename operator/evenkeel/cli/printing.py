"""How results are printed: tables and colour in a terminal, plain columns in a pipe, JSON where it is asked for."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from evenkeel.cli.output import Output

__all__ = [
    "Listing",
    "columns",
    "console",
    "print_json",
    "print_table",
    "say",
    "size",
    "span",
    "styled",
    "tell",
    "visible",
]


class Listing(NamedTuple):
    """Rows to be shown, the same as data, and what is said below them."""

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
"""What a row holds may have been written by anybody: it does not get to speak to the terminal."""
_WRAPPED = ("REASON", "MESSAGE", "WHY")


def console() -> Console:
    """Where people look."""
    return Console(highlight=False, markup=False, soft_wrap=not sys.stdout.isatty())


def say(text: str) -> None:
    """A line for people."""
    console().print(text, soft_wrap=True)


def tell(text: str, output: Output, **data: Any) -> None:
    """What was done: as a line for people, or with its parts for programs."""
    if output is Output.JSON:
        print_json({**data, "message": text})
    else:
        say(text)


def visible(cell: object) -> str:
    """What is in a cell, control characters as escapes."""
    return str(cell).translate(_CONTROLS)


def styled(cell: str) -> Text:
    """A cell in the colour of what it says."""
    return Text(cell, style=_STYLES.get(cell, ""))


def print_json(value: Any, *, indent: int | None = 2) -> None:
    """For programs."""
    sys.stdout.write(json.dumps(value, indent=indent, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def columns(head: Sequence[str], rows: Iterable[Sequence[object]]) -> RichTable:
    """A table without lines, as kubectl prints them."""
    table = RichTable(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    for name in head:
        table.add_column(name, overflow="fold" if name in _WRAPPED else "ellipsis", no_wrap=name not in _WRAPPED)
    for row in rows:
        table.add_row(*(styled(visible(cell)) for cell in row))
    return table


def print_table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Columns for people, tab-free plain text in a pipe."""
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
    """Bytes as people say them."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def span(seconds: float) -> str:
    """A length of time in one unit, as kubectl shows ages."""
    for length, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= 2 * length:
            return f"{int(seconds // length)}{unit}"
    return f"{int(seconds)}s"
