"""Result rows: a table that grows while the benchmarks run, and JSON lines in a file."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

__all__ = ["Report", "Row"]

HEADINGS = ("bench", "case", "value", "unit", "reference", "ratio")


@dataclass(frozen=True, slots=True)
class Row:
    """One result; `ratio` is value divided by reference, and targets are stated in it."""

    bench: str
    case: str
    value: float
    unit: str
    reference: float | None = None
    ratio: float | None = None


class Report:
    """Receives rows as they arrive; redraws a table in a terminal, prints one line per row into a pipe."""

    def __init__(self, console: Console, results: TextIO) -> None:
        self._console = console
        self._results = results
        self._rows: list[Row] = []
        self._running = ""
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            # Redraw only between rows: a background thread would distort the measurements.
            self._live = Live(console=self._console, get_renderable=self._render, auto_refresh=False)
            self._live.start()
        else:
            self._print_line(HEADINGS)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._running = ""
        if self._live is not None:
            self._live.stop()

    def running(self, bench: str, *, position: int, count: int) -> None:
        """Show which benchmark is running."""
        self._running = f"==> {bench} ({position} of {count})"
        if self._live is None:
            self._console.print(self._running, markup=False, highlight=False)
        else:
            self._live.refresh()

    def add(self, row: Row) -> None:
        """Show the row and write it at once, so that an interrupted run keeps its results."""
        self._rows.append(row)
        self._results.write(json.dumps(asdict(row)) + "\n")
        self._results.flush()
        if self._live is None:
            self._print_line(_cells(row))
        else:
            self._live.refresh()

    def _print_line(self, cells: tuple[str, ...]) -> None:
        bench, case, value, unit, reference, ratio = cells
        line = f"{bench:<10} {case:<62} {value:>14} {unit:<12} {reference:>14} {ratio:>8}"
        self._console.print(line.rstrip(), markup=False, highlight=False, soft_wrap=True)

    def _render(self) -> RenderableType:
        table = Table(*HEADINGS[:2])
        for heading in HEADINGS[2:]:
            table.add_column(heading, justify="left" if heading == "unit" else "right")
        for row in self._rows:
            table.add_row(*_cells(row))
        return Group(table, Text(self._running)) if self._running else table


def _cells(row: Row) -> tuple[str, ...]:
    return (row.bench, row.case, _figure(row.value), row.unit, _figure(row.reference), _figure(row.ratio))


def _figure(number: float | None) -> str:
    if number is None:
        return ""
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.4g}"
