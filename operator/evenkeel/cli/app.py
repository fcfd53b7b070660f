"""The commands. Exit codes: 0 all is well, 1 what was asked about is not, 2 the command itself was wrong."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from evenkeel.cli.validate import Format, collect, report

__all__ = ["app"]

app = typer.Typer(
    name="evenkeel",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Raft-replicated, partitioned tables kept on an even keel.",
)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"evenkeel {version('evenkeel-operator')}")
        raise typer.Exit


def _existing(paths: list[Path]) -> list[Path]:
    for path in paths:
        if str(path) != "-" and not path.exists():
            raise typer.BadParameter(f"{path} does not exist")
    return paths


@app.callback()
def evenkeel(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Raft-replicated, partitioned tables kept on an even keel."""


@app.command()
def validate(
    files: Annotated[
        list[Path],
        typer.Option(
            "-f",
            "--filename",
            callback=_existing,
            help="File, folder (its *.yaml, *.yml and *.json) or - for standard input; may be repeated.",
        ),
    ],
    output: Annotated[Format, typer.Option("-o", "--output", help="How to print the result.")] = Format.TABLE,
) -> None:
    """Check resources without a cluster: every problem with its line, what it found and what is allowed."""
    checked = collect(files)
    report(checked, output)
    raise typer.Exit(0 if checked.valid else 1)
