"""The commands. Exit codes: 0 all is well, 1 what was asked about is not, 2 the command itself was wrong.

What a command needs is imported when it is called, so that help and completion come at once.
"""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evenkeel.cli.lazy import Later
from evenkeel.cli.local_app import local
from evenkeel.cli.options import Directory, Printed, Watch
from evenkeel.cli.output import Output
from evenkeel.errors import InvalidInputError

if TYPE_CHECKING:
    from evenkeel.cli import session, tables, verbs, verifying
    from evenkeel.cli import sql as queries
    from evenkeel.cli import validate as checking
else:
    checking, queries, session, tables, verbs, verifying = (
        Later(f"evenkeel.cli.{name}") for name in ("validate", "sql", "session", "tables", "verbs", "verifying")
    )

__all__ = ["app"]

app = typer.Typer(
    name="evenkeel",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Raft-replicated, partitioned tables kept on an even keel.",
)
app.add_typer(local, name="local")


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
TableName = Annotated[str, typer.Argument(help="The table, as in orders.", metavar="TABLE")]
Scaled = Annotated[str, typer.Argument(help="table/orders or storecluster/main.", metavar="KIND/NAME")]
StoreName = Annotated[str, typer.Argument(help="The store, as in main-2.")]
Partition = Annotated[int, typer.Argument(min=0, help="The partition's number.")]


@app.callback()
def evenkeel(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Raft-replicated, partitioned tables kept on an even keel."""


# Resources


@app.command()
def validate(files: Files, output: Printed = Output.TABLE) -> None:
    """Check resources without a cluster: every problem with its line, what it found and what is allowed."""
    checked = checking.collect(files)
    checking.report(checked, output)
    raise typer.Exit(0 if checked.valid else 1)


@app.command()
def apply(files: Files, output: Printed = Output.TABLE, directory: Directory = None) -> None:
    """Make resources what the files say."""
    checked = checking.collect(files)
    if not checked.valid:
        raise InvalidInputError(problems=checked.problems)
    session.in_session(directory, lambda found: verbs.apply(found, checked, output))


@app.command()
def get(
    what: Annotated[str, typer.Argument(help="Kind, as in tables, or table/orders.")],
    name: Annotated[str, typer.Argument(help="One of them.")] = "",
    output: Printed = Output.TABLE,
    watch: Watch = False,
    directory: Directory = None,
) -> None:
    """List resources, or show one with what is unusual about it."""
    session.watching(directory, lambda found: verbs.get(found, what, name, output, watch=watch))


@app.command()
def status(output: Printed = Output.TABLE, watch: Watch = False, directory: Directory = None) -> None:
    """Show all tables and stores, and what is unusual about them."""
    session.watching(directory, lambda found: verbs.status(found, output, watch=watch))


@app.command()
def delete(
    what: Annotated[str, typer.Argument(help="table/orders, or a kind followed by a name.")],
    name: Annotated[str, typer.Argument(help="Its name, where only the kind came before.")] = "",
    wait: Annotated[bool, typer.Option(help="Return when it is gone.")] = True,
    output: Printed = Output.TABLE,
    directory: Directory = None,
) -> None:
    """Delete a resource; a table and its data go for good."""
    session.in_session(directory, lambda found: verbs.delete(found, what, name, output, wait=wait))


@app.command()
def scale(
    what: Scaled,
    replicas: Annotated[int, typer.Option("--replicas", min=1, help="Copies of each partition, or stores.")],
    output: Printed = Output.TABLE,
    directory: Directory = None,
) -> None:
    """Give a table another number of replicas, or a StoreCluster another number of stores."""
    session.in_session(directory, lambda found: verbs.scale(found, what, output, replicas=replicas))


@app.command()
def pause(what: Scaled, output: Printed = Output.TABLE, directory: Directory = None) -> None:
    """Begin no move on a table, or on all tables of a StoreCluster; moves under way are finished."""
    session.in_session(directory, lambda found: verbs.pause(found, what, output, resume=False))


@app.command()
def resume(what: Scaled, output: Printed = Output.TABLE, directory: Directory = None) -> None:
    """End a pause."""
    session.in_session(directory, lambda found: verbs.pause(found, what, output, resume=True))


@app.command()
def wait(
    what: Scaled,
    condition: Annotated[str, typer.Option("--for", help="Ready, Balanced, ...")] = "Ready",
    timeout: Annotated[float, typer.Option(min=0, help="Seconds.")] = 60.0,
    output: Printed = Output.TABLE,
    directory: Directory = None,
) -> None:
    """Wait until a condition holds for the newest spec."""
    session.in_session(directory, lambda found: verbs.wait_for(found, what, condition, output, within=timeout))


# Tables


@app.command()
def partitions(
    table: TableName, output: Printed = Output.TABLE, watch: Watch = False, directory: Directory = None
) -> None:
    """Show where each partition is, who leads it, and how far its change is."""
    session.watching(directory, lambda found: tables.partitions(found, table, output, watch=watch))


@app.command()
def plan(  # noqa: PLR0917 - options, which typer hands over by name
    table: TableName,
    replicas: Annotated[int | None, typer.Option(min=1, help="Imagine so many replicas.")] = None,
    consensus_size: Annotated[int | None, typer.Option(min=1, help="Imagine so many voters.")] = None,
    add_stores: Annotated[int, typer.Option(min=0, help="Imagine so many stores more.")] = 0,
    remove_store: Annotated[list[str] | None, typer.Option(help="Imagine it without this store.")] = None,
    output: Printed = Output.TABLE,
    directory: Directory = None,
) -> None:
    """Show what would move, why, how many bytes and how long; nothing is changed."""
    imagined = {
        "replicas": replicas,
        "consensusSize": consensus_size,
        "addStores": add_stores or None,
        "removeStores": remove_store or None,
    }
    session.in_session(directory, lambda found: tables.plan(found, table, imagined, output))


@app.command()
def approve(
    plan: Annotated[str, typer.Argument(help="The plan, as in plan/orders-7.")],
    digest: Annotated[str, typer.Option("--hash", help="Approve it only if this is its hash.")] = "",
    output: Printed = Output.TABLE,
    directory: Directory = None,
) -> None:
    """Let a plan begin that waits for its approval."""
    session.in_session(directory, lambda found: tables.approve(found, plan, output, digest=digest))


@app.command()
def explain(
    table: TableName, partition: Partition, output: Printed = Output.TABLE, directory: Directory = None
) -> None:
    """Show why a partition is where it is: what the last plans wanted of it."""
    session.in_session(directory, lambda found: tables.explain(found, table, partition, output))


@app.command("transfer-leader")
def transfer_leader(  # noqa: PLR0917 - options, which typer hands over by name
    table: TableName,
    partition: Partition,
    store: Annotated[str, typer.Argument(help="The store that is to lead it, as in main-2.")] = "",
    release: Annotated[bool, typer.Option("--release", help="Let the plan say again who leads it.")] = False,
    output: Printed = Output.TABLE,
    directory: Directory = None,
) -> None:
    """Have a store lead a partition from now on."""
    if bool(store) == release:
        raise typer.BadParameter("give a store, or --release")
    session.in_session(
        directory, lambda found: tables.transfer_leader(found, table, partition, store, output, release=release)
    )


@app.command()
def sql(
    query: Annotated[str, typer.Argument(help="As in: select count(*) from orders.")],
    cluster: Annotated[str, typer.Option("--store-cluster", help="The StoreCluster that has the tables.")] = "main",
    output: Printed = Output.TABLE,
    directory: Directory = None,
) -> None:
    """Run a query over tables, in this process."""
    endpoints = session.in_session(directory, lambda found: tables.endpoints(found, cluster))
    queries.run_query(query, endpoints, output)


@app.command()
def verify(
    table: TableName,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds to wait for all replicas.")] = 60.0,
    output: Printed = Output.TABLE,
    directory: Directory = None,
) -> None:
    """Compare the rows of all replicas; exits with 1 unless they are the same."""
    name, endpoints = session.in_session(directory, lambda found: tables.endpoints_of(found, table))
    raise typer.Exit(0 if verifying.verify_table(name, endpoints, output, deadline=timeout) else 1)


# Stores


@app.command()
def drain(
    store: StoreName,
    undo: Annotated[bool, typer.Option("--undo", help="Let it take replicas again.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Return when it is empty.")] = False,
    output: Printed = Output.TABLE,
    directory: Directory = None,
) -> None:
    """Move everything off a store."""
    session.in_session(directory, lambda found: tables.drain(found, store, output, undo=undo, wait=wait))


@app.command()
def release(store: StoreName, output: Printed = Output.TABLE, directory: Directory = None) -> None:
    """Let a store take replicas again that was drained."""
    session.in_session(directory, lambda found: tables.drain(found, store, output, undo=True, wait=False))
