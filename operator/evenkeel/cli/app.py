"""The commands. Exit codes: 0 all is well, 1 what was asked about is not, 2 the command itself was wrong."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from evenkeel.cli import local as local_commands
from evenkeel.cli import verbs
from evenkeel.cli.printing import Output
from evenkeel.cli.session import in_session
from evenkeel.cli.validate import Format, collect, report
from evenkeel.errors import InvalidInputError
from evenkeel.local.layout import default_directory

__all__ = ["app"]

app = typer.Typer(
    name="evenkeel",
    no_args_is_help=True,
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


Files = Annotated[
    list[Path],
    typer.Option(
        "-f",
        "--filename",
        callback=_existing,
        help="File, folder (its *.yaml, *.yml and *.json) or - for standard input; may be repeated.",
    ),
]
Printed = Annotated[Output, typer.Option("-o", "--output", help="How to print the result.")]
Directory = Annotated[
    Path | None, typer.Option("--dir", help="Directory of the local cluster.", envvar="EVENKEEL_LOCAL")
]
Watch = Annotated[bool, typer.Option("-w", "--watch", help="Keep showing what changes.")]

local = typer.Typer(no_args_is_help=True, help="A whole cluster on this machine.")
app.add_typer(local, name="local")


def _at(directory: Path | None) -> Path:
    return directory if directory is not None else default_directory()


@app.callback()
def evenkeel(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Raft-replicated, partitioned tables kept on an even keel."""


@app.command()
def validate(
    files: Files,
    output: Annotated[Format, typer.Option("-o", "--output", help="How to print the result.")] = Format.TABLE,
) -> None:
    """Check resources without a cluster: every problem with its line, what it found and what is allowed."""
    checked = collect(files)
    report(checked, output)
    raise typer.Exit(0 if checked.valid else 1)


@app.command()
def apply(files: Files, output: Printed = Output.TABLE, directory: Directory = None) -> None:
    """Make resources what the files say."""
    checked = collect(files)
    if not checked.valid:
        raise InvalidInputError(problems=checked.problems)
    in_session(_at(directory), lambda session: verbs.apply(session, checked, output))


@app.command()
def get(
    what: Annotated[str, typer.Argument(help="Kind, as in tables, or table/orders.")],
    name: Annotated[str, typer.Argument(help="One of them.")] = "",
    output: Printed = Output.TABLE,
    watch: Watch = False,
    directory: Directory = None,
) -> None:
    """List resources, or show one."""
    in_session(_at(directory), lambda session: verbs.get(session, what, name, output, watch=watch))


@app.command()
def delete(
    what: Annotated[str, typer.Argument(help="table/orders, or a kind followed by a name.")],
    name: Annotated[str, typer.Argument()] = "",
    wait: Annotated[bool, typer.Option(help="Return when it is gone.")] = True,
    directory: Directory = None,
) -> None:
    """Delete a resource; a table and its data go for good."""
    in_session(_at(directory), lambda session: verbs.delete(session, what, name, wait=wait))


@app.command()
def scale(
    what: Annotated[str, typer.Argument(help="table/orders or storecluster/main.")],
    replicas: Annotated[int, typer.Option("--replicas", min=1, help="Copies of each partition, or stores.")],
    directory: Directory = None,
) -> None:
    """Give a table another number of replicas, or a StoreCluster another number of stores."""
    in_session(_at(directory), lambda session: verbs.scale(session, what, replicas=replicas))


@app.command()
def drain(
    store: Annotated[str, typer.Argument(help="The store, as in main-2.")],
    undo: Annotated[bool, typer.Option("--undo", help="Let it take replicas again.")] = False,
    directory: Directory = None,
) -> None:
    """Move everything off a store."""
    in_session(_at(directory), lambda session: verbs.drain(session, store, undo=undo))


@app.command()
def plan(
    what: Annotated[str, typer.Argument(help="table/orders.")],
    replicas: Annotated[int | None, typer.Option("--replicas", min=1, help="Imagine so many replicas.")] = None,
    output: Printed = Output.TABLE,
    directory: Directory = None,
) -> None:
    """Show what would move, and why; nothing is changed."""
    in_session(_at(directory), lambda session: verbs.plan(session, what, replicas=replicas, output=output))


@app.command()
def partitions(
    table: Annotated[str, typer.Argument(help="The table, as in orders.")],
    output: Printed = Output.TABLE,
    watch: Watch = False,
    directory: Directory = None,
) -> None:
    """Show where each partition is, who leads it, and how far its change is."""
    in_session(_at(directory), lambda session: verbs.partitions(session, table, output, watch=watch))


@app.command()
def sql(
    query: Annotated[str, typer.Argument(help="As in: select count(*) from orders.")],
    cluster: Annotated[str, typer.Option("--store-cluster", help="The StoreCluster that has the tables.")] = "main",
    output: Printed = Output.TABLE,
    directory: Directory = None,
) -> None:
    """Run a query over tables, in this process."""
    from evenkeel.cli.sql import run_query  # noqa: PLC0415 - pyarrow and duckdb take their time to load

    endpoints = in_session(_at(directory), lambda session: verbs.endpoints(session, cluster))
    run_query(query, endpoints, output)


@app.command()
def wait(
    what: Annotated[str, typer.Argument(help="table/orders or storecluster/main.")],
    condition: Annotated[str, typer.Option("--for", help="Ready, Balanced, ...")] = "Ready",
    timeout: Annotated[float, typer.Option(help="Seconds.")] = 60.0,
    directory: Directory = None,
) -> None:
    """Wait until a condition holds for the newest spec."""
    in_session(_at(directory), lambda session: verbs.wait_for(session, what, condition, within=timeout))


@local.command()
def up(
    stores: Annotated[int | None, typer.Option(min=1, help="Number of stores (3 for a new cluster).")] = None,
    name: Annotated[str, typer.Option(help="Name of the StoreCluster.")] = "main",
    with_parent: Annotated[bool, typer.Option(help="End with the process that called, however it ends.")] = False,
    directory: Directory = None,
) -> None:
    """Start a cluster, or go on with the one that is there."""
    local_commands.launch(_at(directory), with_parent=with_parent)
    in_session(_at(directory), lambda session: local_commands.make_stores(session, name=name, stores=stores))
    in_session(_at(directory), lambda session: local_commands.status(session, Output.TABLE))


@local.command()
def down(directory: Directory = None) -> None:
    """Stop the cluster; its data stays."""
    local_commands.down(_at(directory))


@local.command()
def status(output: Printed = Output.TABLE, directory: Directory = None) -> None:
    """List the stores and where they are."""
    in_session(_at(directory), lambda session: local_commands.status(session, output))


@local.command()
def kill(
    store: Annotated[str, typer.Argument(help="The store, as in main-2.")],
    undo: Annotated[bool, typer.Option("--undo", help="Let it come back.")] = False,
    directory: Directory = None,
) -> None:
    """Kill a store's processes, and keep them down until --undo."""
    in_session(_at(directory), lambda session: local_commands.kill(session, store, undo=undo))
