"""A listing shown once, or kept up to date: live in a terminal, printed again on every change in a pipe."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from rich.console import Group
from rich.live import Live
from rich.text import Text

from evenkeel.cli.output import Output
from evenkeel.cli.printing import Listing, columns, console, print_json, print_table, say

__all__ = ["show"]

_REFRESH_SECONDS: Final = 0.5
Look = Callable[[], Awaitable[Listing]]


async def show(look: Look, output: Output, *, watch: bool = False) -> None:
    """Show what `look` finds."""
    if not watch:
        _print(await look(), output)
    elif output is Output.TABLE and console().is_terminal:
        await _live(look)
    else:
        await _on_change(look, output)


def _print(found: Listing, output: Output, *, indent: int | None = 2) -> None:
    if output is Output.JSON:
        print_json(found.data, indent=indent)
        return
    if found.rows:
        print_table(found.head, found.rows)
    else:
        say("nothing found")
    for note in found.notes:
        say(note)


async def _live(look: Look) -> None:
    with Live(console=console(), auto_refresh=False) as live:
        while True:
            found = await look()
            notes = [Text(note) for note in found.notes]
            live.update(Group(columns(found.head, found.rows), *notes, Text("Ctrl-C ends", style="dim")), refresh=True)
            await asyncio.sleep(_REFRESH_SECONDS)


async def _on_change(look: Look, output: Output) -> None:
    """Ages aside, whatever changes is printed again; as JSON a line each time."""
    shown: object = None
    while True:
        found = await look()
        now = found.data if output is Output.JSON else (_without_ages(found), found.notes)
        if now != shown:
            _print(found, output, indent=None)
            shown = now
        await asyncio.sleep(_REFRESH_SECONDS)


def _without_ages(found: Listing) -> list[list[str]]:
    kept = [at for at, name in enumerate(found.head) if name != "AGE"]
    return [[str(row[at]) for at in kept] for row in found.rows]
