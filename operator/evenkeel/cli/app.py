"""The commands. Exit codes: 0 all is well, 1 what was asked about is not, 2 the command itself was wrong.

What a command needs is imported when it is called, so that help and completion come at once.
"""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evenkeel.cli.completion import resource_names, store_names, table_names
from evenkeel.cli.lazy import Later
from evenkeel.cli.local_app import local
from evenkeel.cli.options import Printed, Watch
from evenkeel.cli.output import Output
from evenkeel.cli.place import Place, Program, cluster_place, command, local_place
from evenkeel.errors import InvalidInputError

if TYPE_CHECKING:
    from evenkeel.cli import (
        dropped_commands,
        force_delete,
        resource_commands,
        session,
        sql_command,
        table_commands,
        validate_command,
        verify_command,
    )
else:
    dropped_commands = Later("evenkeel.cli.dropped_commands")
    force_delete = Later("evenkeel.cli.force_delete")
    resource_commands = Later("evenkeel.cli.resource_commands")
    session = Later("evenkeel.cli.session")
    sql_command = Later("evenkeel.cli.sql_command")
    table_commands = Later("evenkeel.cli.table_commands")
    validate_command = Later("evenkeel.cli.validate_command")
    verify_command = Later("evenkeel.cli.verify_command")

__all__ = ["app", "plugin"]

app = typer.Typer(
    name="evenkeel",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Raft-replicated, partitioned tables kept on an even keel.",
)
app.add_typer(local, name="local")
plugin = typer.Typer(
    name="kubectl evenkeel",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Raft-replicated, partitioned tables on Kubernetes.",
)
HERE = Program(app, local_place)
THERE = Program(plugin, cluster_place)


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
TableName = Annotated[str, typer.Argument(help="The table, as in orders.", metavar="TABLE", autocompletion=table_names)]
Scaled = Annotated[
    str,
    typer.Argument(help="table/orders or storecluster/main.", metavar="KIND/NAME", autocompletion=resource_names),
]
StoreName = Annotated[str, typer.Argument(help="The store, as in main-2.", autocompletion=store_names)]
Partition = Annotated[int, typer.Argument(min=0, help="The partition's number.")]


Version = Annotated[
    bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
]


@app.callback()
def evenkeel(
    _local: Annotated[
        bool,
        typer.Option("--local", help="Work on the local cluster, as it always does: kubectl evenkeel is the other."),
    ] = False,
    _version: Version = False,
) -> None:
    """Raft-replicated, partitioned tables kept on an even keel."""


@plugin.callback()
def kubectl_evenkeel(_version: Version = False) -> None:
    """Raft-replicated, partitioned tables on Kubernetes."""


# Resources


@command(HERE, THERE)
def validate(files: Files, output: Printed = Output.TABLE) -> None:
    """Check resources without a cluster: every problem with its line, what it found and what is allowed."""
    checked = validate_command.collect(files)
    validate_command.report(checked, output)
    raise typer.Exit(0 if checked.valid else 1)


@command(HERE)
def apply(files: Files, output: Printed = Output.TABLE, *, place: Place) -> None:
    """Make resources what the files say."""
    checked = validate_command.collect(files)
    if not checked.valid:
        raise InvalidInputError(problems=checked.problems)
    session.in_session(place, lambda found: resource_commands.apply(found, checked, output))


@command(HERE, THERE)
def get(
    what: Annotated[str, typer.Argument(help="Kind, as in tables, or table/orders.", autocompletion=resource_names)],
    name: Annotated[str, typer.Argument(help="One of them.")] = "",
    output: Printed = Output.TABLE,
    watch: Watch = False,
    *,
    place: Place,
) -> None:
    """List resources, or show one with what is unusual about it."""
    session.watching(place, lambda found: resource_commands.get(found, what, name, output, watch=watch))


@command(HERE, THERE)
def status(output: Printed = Output.TABLE, watch: Watch = False, *, place: Place) -> None:
    """Show all tables and stores, and what is unusual about them."""
    session.watching(place, lambda found: resource_commands.status(found, output, watch=watch))


@command(HERE)
def delete(
    what: Annotated[
        str, typer.Argument(help="table/orders, or a kind followed by a name.", autocompletion=resource_names)
    ],
    name: Annotated[str, typer.Argument(help="Its name, where only the kind came before.")] = "",
    wait: Annotated[bool, typer.Option(help="Return when it is gone.")] = True,
    output: Printed = Output.TABLE,
    *,
    place: Place,
) -> None:
    """Delete a resource; a table and its data go for good."""
    session.in_session(place, lambda found: resource_commands.delete(found, what, name, output, wait=wait))


@command(HERE)
def scale(
    what: Scaled,
    replicas: Annotated[int, typer.Option("--replicas", min=1, help="Copies of each partition, or stores.")],
    output: Printed = Output.TABLE,
    *,
    place: Place,
) -> None:
    """Give a table another number of replicas, or a StoreCluster another number of stores."""
    session.in_session(place, lambda found: resource_commands.scale(found, what, output, replicas=replicas))


@command(HERE, THERE)
def pause(what: Scaled, output: Printed = Output.TABLE, *, place: Place) -> None:
    """Begin no move on a table, or on all tables of a StoreCluster; moves under way are finished."""
    session.in_session(place, lambda found: resource_commands.pause(found, what, output, resume=False))


@command(HERE, THERE)
def resume(what: Scaled, output: Printed = Output.TABLE, *, place: Place) -> None:
    """End a pause."""
    session.in_session(place, lambda found: resource_commands.pause(found, what, output, resume=True))


@command(HERE, THERE)
def wait(
    what: Scaled,
    condition: Annotated[str, typer.Option("--for", help="Ready, Balanced, ...")] = "Ready",
    timeout: Annotated[float, typer.Option(min=0, help="Seconds.")] = 60.0,
    output: Printed = Output.TABLE,
    *,
    place: Place,
) -> None:
    """Wait until a condition holds for the newest spec."""
    session.in_session(place, lambda found: resource_commands.wait_for(found, what, condition, output, within=timeout))


# Tables


@command(HERE, THERE)
def partitions(table: TableName, output: Printed = Output.TABLE, watch: Watch = False, *, place: Place) -> None:
    """Show where each partition is, who leads it, and how far its change is."""
    session.watching(place, lambda found: table_commands.partitions(found, table, output, watch=watch))


@command(HERE, THERE)
def plan(  # noqa: PLR0917 - options, which typer hands over by name
    table: TableName,
    replicas: Annotated[int | None, typer.Option(min=1, help="Imagine so many replicas.")] = None,
    consensus_size: Annotated[int | None, typer.Option(min=1, help="Imagine so many voters.")] = None,
    add_stores: Annotated[int, typer.Option(min=0, help="Imagine so many stores more.")] = 0,
    remove_store: Annotated[list[str] | None, typer.Option(help="Imagine it without this store.")] = None,
    output: Printed = Output.TABLE,
    *,
    place: Place,
) -> None:
    """Show what would move, why, how many bytes and how long; nothing is changed."""
    imagined = {
        "replicas": replicas,
        "consensusSize": consensus_size,
        "addStores": add_stores or None,
        "removeStores": remove_store or None,
    }
    session.in_session(place, lambda found: table_commands.plan(found, table, imagined, output))


@command(HERE, THERE)
def approve(
    plan: Annotated[str, typer.Argument(help="The plan, as in plan/orders-7.")],
    digest: Annotated[str, typer.Option("--hash", help="Approve it only if this is its hash.")] = "",
    output: Printed = Output.TABLE,
    *,
    place: Place,
) -> None:
    """Let a plan begin that waits for its approval."""
    session.in_session(place, lambda found: table_commands.approve(found, plan, output, digest=digest))


@command(HERE)
def explain(table: TableName, partition: Partition, output: Printed = Output.TABLE, *, place: Place) -> None:
    """Show why a partition is where it is: what the last plans wanted of it."""
    session.in_session(place, lambda found: table_commands.explain(found, table, partition, output))


@command(HERE, THERE, name="transfer-leader")
def transfer_leader(
    table: TableName,
    partition: Partition,
    store: Annotated[
        str, typer.Argument(help="The store that is to lead it, as in main-2.", autocompletion=store_names)
    ] = "",
    release: Annotated[bool, typer.Option("--release", help="Let the plan say again who leads it.")] = False,
    output: Printed = Output.TABLE,
    *,
    place: Place,
) -> None:
    """Have a store lead a partition from now on."""
    if bool(store) == release:
        raise typer.BadParameter("give a store, or --release")
    session.in_session(
        place, lambda found: table_commands.transfer_leader(found, table, partition, store, output, release=release)
    )


@command(HERE, THERE)
def sql(
    query: Annotated[str, typer.Argument(help="As in: select count(*) from orders.")],
    cluster: Annotated[str, typer.Option("--store-cluster", help="The StoreCluster that has the tables.")] = "main",
    output: Printed = Output.TABLE,
    *,
    place: Place,
) -> None:
    """Run a query over tables, in this process."""
    sql_command.run_query(query, place, cluster, output)


@command(HERE, THERE)
def verify(
    table: TableName,
    heal: Annotated[bool, typer.Option("--heal", help="Build replicas anew that have other rows than most.")] = False,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds to wait for all replicas.")] = 60.0,
    output: Printed = Output.TABLE,
    *,
    place: Place,
) -> None:
    """Compare the rows of all replicas; exits with 1 unless they are the same."""
    name, cluster = session.in_session(place, lambda found: table_commands.whereabouts(found, table))
    raise typer.Exit(0 if verify_command.verify_table(name, place, cluster, output, deadline=timeout, heal=heal) else 1)


DroppedName = Annotated[
    str,
    typer.Argument(help="The deleted table, as in orders; or orders.UID where several had that name.", metavar="TABLE"),
]


@command(HERE, THERE)
def dropped(output: Printed = Output.TABLE, *, place: Place) -> None:
    """List deleted tables whose data is kept."""
    session.in_session(place, lambda found: dropped_commands.dropped(found, output))


@command(HERE, THERE)
def undelete(
    table: DroppedName,
    wait: Annotated[bool, typer.Option(help="Return when the table is there again.")] = True,
    output: Printed = Output.TABLE,
    *,
    place: Place,
) -> None:
    """Restore a deleted table with its data."""
    session.in_session(place, lambda found: dropped_commands.undelete(found, table, output, wait=wait))


@command(HERE, THERE)
def purge(
    table: DroppedName,
    wait: Annotated[bool, typer.Option(help="Return when all stores have removed it.")] = True,
    output: Printed = Output.TABLE,
    *,
    place: Place,
) -> None:
    """Remove the data of a deleted table now; it cannot be undeleted afterwards."""
    session.in_session(place, lambda found: dropped_commands.purge(found, table, output, wait=wait))


# Stores


@command(HERE, THERE)
def drain(
    store: StoreName,
    undo: Annotated[bool, typer.Option("--undo", help="Let it take replicas again.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Return when it is empty.")] = False,
    output: Printed = Output.TABLE,
    *,
    place: Place,
) -> None:
    """Move everything off a store."""
    session.in_session(place, lambda found: table_commands.drain(found, store, output, undo=undo, wait=wait))


@command(HERE, THERE)
def release(
    what: Annotated[
        str,
        typer.Argument(help="A store, as in main-2; or table/orders, storecluster/main.", autocompletion=store_names),
    ],
    wait: Annotated[bool, typer.Option(help="Return when a resource is gone.")] = True,
    output: Printed = Output.TABLE,
    *,
    place: Place,
) -> None:
    """Let a store take replicas again that was drained; or let go of a resource whose deletion is stuck."""
    session.in_session(place, lambda found: force_delete.release(found, what, output, wait=wait))
