"""Generates the commands of docs/cli.md: `python -m evenkeel.cli.cli_reference docs/cli.md`.

Only the part between `<!-- commands -->` and `<!-- end -->` is generated; the rest of the page is written by hand.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from typer.main import get_command

from evenkeel.cli.app import app

__all__ = ["main", "render"]

_BLOCK = re.compile(r"(<!-- commands -->\n).*?(<!-- end -->)", re.DOTALL)
_EVERYWHERE = ("--output", "--dir", "--help")
"""Options of every verb, which the page describes once."""


def render(page: str) -> str:
    """Return the page with its commands generated again."""
    text = "".join(_group(get_command(app), "evenkeel"))
    return _BLOCK.sub(lambda match: f"{match[1]}{text}{match[2]}", page)


def _group(group: Any, name: str) -> Iterator[str]:
    for verb, command in group.commands.items():
        if command.hidden:
            continue
        if hasattr(command, "commands"):
            yield from _group(command, f"{name} {verb}")
        else:
            yield from _command(command, f"{name} {verb}")


def _command(command: Any, name: str) -> Iterator[str]:
    arguments = [found for found in command.params if found.param_type_name == "argument"]
    options = [found for found in command.params if found.param_type_name == "option"]
    yield f"### {' '.join([name, *map(_argument, arguments)])}\n\n{command.help}\n\n"
    rows = [(f"`{_name(found)}`", _meaning(found)) for found in arguments]
    rows += [(_option(found), _meaning(found)) for found in options if not set(found.opts) & set(_EVERYWHERE)]
    if rows:
        yield "| option | meaning |\n|---|---|\n"
        yield "".join(f"| {left} | {right} |\n" for left, right in rows) + "\n"


def _name(argument: Any) -> str:
    return str(argument.metavar or argument.name).upper()


def _argument(argument: Any) -> str:
    return _name(argument) if argument.required else f"[{_name(argument)}]"


def _option(option: Any) -> str:
    names = [*option.opts, *option.secondary_opts]
    return ", ".join(f"`{name}`" for name in sorted(names, key=len))


def _meaning(option: Any) -> str:
    words = " ".join((option.help or "").split()).replace("*", "\\*")
    if option.required and option.param_type_name == "option":
        return f"{words} Required."
    shown = option.default not in (None, "", False, True, 0) and not isinstance(option.default, list | tuple)
    return f"{words} Default: {option.default}." if shown else words


def main(arguments: Sequence[str]) -> None:
    """Update the given pages."""
    for name in arguments:
        page = Path(name)
        page.write_text(render(page.read_text()))


if __name__ == "__main__":
    main(sys.argv[1:])
