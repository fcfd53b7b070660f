"""A listing printed once, or kept up to date: redrawn in a terminal, printed on every change in a pipe."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from rich.console import Group
from rich.live import Live
from rich.text import Text

from evenkeel.cli.options import Output
from evenkeel.cli.terminal_output import Listing, columns, console, print_json, print_line, print_table

__all__ = ["show"]

_REFRESH_SECONDS: Final = 0.5
Fetch = Callable[[], Awaitable[Listing]]


async def show(fetch: Fetch, output: Output, *, watch: bool = False) -> None:
    """Print the listing that `fetch` returns; with `watch`, fetch it again until cancelled."""
    if not watch:
        _print(await fetch(), output)
    elif output is Output.TABLE and console().is_terminal:
        await _redraw(fetch)
    else:
        await _print_changes(fetch, output)


def _print(found: Listing, output: Output, *, indent: int | None = 2) -> None:
    if output is Output.JSON:
        print_json(found.data, indent=indent)
        return
    if found.rows:
        print_table(found.head, found.rows)
    else:
        print_line("No resources found")
    for note in found.notes:
        print_line(note)


async def _redraw(fetch: Fetch) -> None:
    with Live(console=console(), auto_refresh=False) as live:
        while True:
            found = await fetch()
            notes = [Text(note) for note in found.notes]
            hint = Text("Press Ctrl-C to stop", style="dim")
            live.update(Group(columns(found.head, found.rows), *notes, hint), refresh=True)
            await asyncio.sleep(_REFRESH_SECONDS)


async def _print_changes(fetch: Fetch, output: Output) -> None:
    """Print the listing when anything but an age changed; as JSON, one line each time."""
    printed: object = None
    while True:
        found = await fetch()
        now = found.data if output is Output.JSON else (_without_ages(found), found.notes)
        if now != printed:
            _print(found, output, indent=None)
            printed = now
        await asyncio.sleep(_REFRESH_SECONDS)


def _without_ages(found: Listing) -> list[list[str]]:
    kept = [at for at, name in enumerate(found.head) if name != "AGE"]
    return [[str(row[at]) for at in kept] for row in found.rows]
