"""The verbs of `evenkeel` and `kubectl evenkeel`, and their options.

Exit codes: 0 for success, 1 for an error or a negative answer, 2 for wrong usage. What a command needs is imported when
it runs, so that `--help` and shell completion stay fast.
"""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evenkeel.cli.lazy_module import LazyModule
from evenkeel.cli.local_app import local
from evenkeel.cli.options import Output, OutputOption, Watch
from evenkeel.cli.shell_completion import resource_names, store_names, table_names
from evenkeel.cli.target_cluster import Program, Target, command, kube_target, local_target
from evenkeel.errors import InvalidInputError

if TYPE_CHECKING:
    from evenkeel.cli import (
        cluster_session,
        dropped_commands,
        force_delete,
        resource_commands,
        sql_command,
        table_commands,
        validate_command,
        verify_command,
    )
else:
    cluster_session = LazyModule("evenkeel.cli.cluster_session")
    dropped_commands = LazyModule("evenkeel.cli.dropped_commands")
    force_delete = LazyModule("evenkeel.cli.force_delete")
    resource_commands = LazyModule("evenkeel.cli.resource_commands")
    sql_command = LazyModule("evenkeel.cli.sql_command")
    table_commands = LazyModule("evenkeel.cli.table_commands")
    validate_command = LazyModule("evenkeel.cli.validate_command")
    verify_command = LazyModule("evenkeel.cli.verify_command")

__all__ = ["app", "plugin"]

app = typer.Typer(
    name="evenkeel",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Manage raft-replicated, partitioned tables on a local cluster.",
)
app.add_typer(local, name="local")
plugin = typer.Typer(
    name="kubectl evenkeel",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Manage raft-replicated, partitioned tables on Kubernetes.",
)
LOCAL = Program(app, local_target)
KUBE = Program(plugin, kube_target)


def _show_version(requested: bool) -> None:
    if requested:
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
        help="File, folder (its *.yaml, *.yml and *.json files) or - for standard input; repeatable.",
    ),
]
TableName = Annotated[str, typer.Argument(help="Table, such as orders.", metavar="TABLE", autocompletion=table_names)]
ResourceName = Annotated[
    str,
    typer.Argument(
        help="Resource, such as table/orders or storecluster/main.", metavar="KIND/NAME", autocompletion=resource_names
    ),
]
StoreName = Annotated[str, typer.Argument(help="Store, such as main-2.", autocompletion=store_names)]
Partition = Annotated[int, typer.Argument(min=0, help="Partition number.")]


Version = Annotated[
    bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
]


@app.callback()
def evenkeel(
    _local: Annotated[
        bool,
        typer.Option(
            "--local", help="Use the local cluster; this is the default. For Kubernetes use kubectl evenkeel."
        ),
    ] = False,
    _version: Version = False,
) -> None:
    """Manage raft-replicated, partitioned tables on a local cluster."""


@plugin.callback()
def kubectl_evenkeel(_version: Version = False) -> None:
    """Manage raft-replicated, partitioned tables on Kubernetes."""


# Resources


@command(LOCAL, KUBE)
def validate(files: Files, output: OutputOption = Output.TABLE) -> None:
    """Check resource files without a cluster. Reports every problem with its line and the allowed values."""
    checked = validate_command.collect(files)
    validate_command.report(checked, output)
    raise typer.Exit(0 if checked.valid else 1)


@command(LOCAL)
def apply(files: Files, output: OutputOption = Output.TABLE, *, target: Target) -> None:
    """Create or update resources from files."""
    checked = validate_command.collect(files)
    if not checked.valid:
        raise InvalidInputError(problems=checked.problems)
    cluster_session.run_in_session(target, lambda session: resource_commands.apply(session, checked, output))


@command(LOCAL, KUBE)
def get(
    what: Annotated[
        str,
        typer.Argument(help="Kind, such as tables, or KIND/NAME, such as table/orders.", autocompletion=resource_names),
    ],
    name: Annotated[str, typer.Argument(help="Name of one resource.")] = "",
    output: OutputOption = Output.TABLE,
    watch: Watch = False,
    *,
    target: Target,
) -> None:
    """List resources, or show one and its problems."""
    cluster_session.run_until_interrupted(
        target, lambda session: resource_commands.get(session, what, name, output, watch=watch)
    )


@command(LOCAL, KUBE)
def status(output: OutputOption = Output.TABLE, watch: Watch = False, *, target: Target) -> None:
    """Show all tables and StoreClusters, and their problems."""
    cluster_session.run_until_interrupted(
        target, lambda session: resource_commands.status(session, output, watch=watch)
    )


@command(LOCAL)
def delete(
    what: Annotated[
        str,
        typer.Argument(
            help="KIND/NAME, such as table/orders, or a kind followed by a name.", autocompletion=resource_names
        ),
    ],
    name: Annotated[str, typer.Argument(help="Name, if the first argument is a kind.")] = "",
    wait: Annotated[bool, typer.Option(help="Wait until the resource is gone.")] = True,
    output: OutputOption = Output.TABLE,
    *,
    target: Target,
) -> None:
    """Delete a resource. The data of a table is kept according to its deletionPolicy and undeleteFor."""
    cluster_session.run_in_session(
        target, lambda session: resource_commands.delete(session, what, name, output, wait=wait)
    )


@command(LOCAL)
def scale(
    what: ResourceName,
    replicas: Annotated[
        int, typer.Option("--replicas", min=1, help="Replicas of each partition, or number of stores.")
    ],
    output: OutputOption = Output.TABLE,
    *,
    target: Target,
) -> None:
    """Set the replicas of a table or the stores of a StoreCluster."""
    cluster_session.run_in_session(
        target, lambda session: resource_commands.scale(session, what, output, replicas=replicas)
    )


@command(LOCAL, KUBE)
def pause(what: ResourceName, output: OutputOption = Output.TABLE, *, target: Target) -> None:
    """Pause a table or all tables of a StoreCluster. Moves in progress finish; no new move starts."""
    cluster_session.run_in_session(target, lambda session: resource_commands.pause(session, what, output, resume=False))


@command(LOCAL, KUBE)
def resume(what: ResourceName, output: OutputOption = Output.TABLE, *, target: Target) -> None:
    """Resume a paused table or StoreCluster."""
    cluster_session.run_in_session(target, lambda session: resource_commands.pause(session, what, output, resume=True))


@command(LOCAL, KUBE)
def wait(
    what: ResourceName,
    condition: Annotated[str, typer.Option("--for", help="Condition type, such as Ready or Balanced.")] = "Ready",
    timeout: Annotated[float, typer.Option(min=0, help="Timeout in seconds.")] = 60.0,
    output: OutputOption = Output.TABLE,
    *,
    target: Target,
) -> None:
    """Wait until a condition is True for the current spec."""
    cluster_session.run_in_session(
        target, lambda session: resource_commands.wait_for(session, what, condition, output, within=timeout)
    )


# Tables


@command(LOCAL, KUBE)
def partitions(table: TableName, output: OutputOption = Output.TABLE, watch: Watch = False, *, target: Target) -> None:
    """Show stores, leader and progress of every partition."""
    cluster_session.run_until_interrupted(
        target, lambda session: table_commands.partitions(session, table, output, watch=watch)
    )


@command(LOCAL, KUBE)
def plan(  # noqa: PLR0917 - options, which typer hands over by name
    table: TableName,
    replicas: Annotated[int | None, typer.Option(min=1, help="Assume this number of replicas.")] = None,
    consensus_size: Annotated[int | None, typer.Option(min=1, help="Assume this number of voters.")] = None,
    add_stores: Annotated[int, typer.Option(min=0, help="Assume this many additional stores.")] = 0,
    remove_store: Annotated[list[str] | None, typer.Option(help="Assume this store is removed; repeatable.")] = None,
    output: OutputOption = Output.TABLE,
    *,
    target: Target,
) -> None:
    """Preview the next plan without changing anything. Shows its moves, their reasons, sizes and duration."""
    what_if = {
        "replicas": replicas,
        "consensusSize": consensus_size,
        "addStores": add_stores or None,
        "removeStores": remove_store or None,
    }
    cluster_session.run_in_session(target, lambda session: table_commands.plan(session, table, what_if, output))


@command(LOCAL, KUBE)
def approve(
    plan: Annotated[str, typer.Argument(help="Plan, such as plan/orders-7.")],
    digest: Annotated[str, typer.Option("--hash", help="Approve the plan only if this is its hash.")] = "",
    output: OutputOption = Output.TABLE,
    *,
    target: Target,
) -> None:
    """Approve a plan that awaits approval."""
    cluster_session.run_in_session(target, lambda session: table_commands.approve(session, plan, output, digest=digest))


@command(LOCAL)
def explain(table: TableName, partition: Partition, output: OutputOption = Output.TABLE, *, target: Target) -> None:
    """Explain the placement of a partition by its recent plans."""
    cluster_session.run_in_session(target, lambda session: table_commands.explain(session, table, partition, output))


# The former verb stays as a hidden alias for one version.
@command(LOCAL, KUBE, name="transfer-leader", hidden=True)
@command(LOCAL, KUBE, name="hand-over")
def hand_over(
    table: TableName,
    partition: Partition,
    store: Annotated[
        str, typer.Argument(help="Store that becomes the leader, such as main-2.", autocompletion=store_names)
    ] = "",
    release: Annotated[bool, typer.Option("--release", help="Let the plan choose the leader again.")] = False,
    output: OutputOption = Output.TABLE,
    *,
    target: Target,
) -> None:
    """Hand over the leadership of a partition to a store. The store stays the preferred leader until --release."""
    if bool(store) == release:
        raise typer.BadParameter("give either a store or --release")
    cluster_session.run_in_session(
        target, lambda session: table_commands.hand_over(session, table, partition, store, output, release=release)
    )


@command(LOCAL, KUBE)
def sql(
    query: Annotated[str, typer.Argument(help="Query, such as: select count(*) from orders.")],
    cluster: Annotated[str, typer.Option("--store-cluster", help="StoreCluster that holds the tables.")] = "main",
    output: OutputOption = Output.TABLE,
    *,
    target: Target,
) -> None:
    """Run a SQL query over tables. The query is executed in this process."""
    sql_command.run_query(query, target, cluster, output)


@command(LOCAL, KUBE)
def verify(
    table: TableName,
    heal: Annotated[bool, typer.Option("--heal", help="Rebuild replicas whose rows differ from the majority.")] = False,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds to wait for the replicas.")] = 60.0,
    output: OutputOption = Output.TABLE,
    *,
    target: Target,
) -> None:
    """Compare the rows of all replicas of a table. Exits with 1 unless they are identical."""
    name, cluster = cluster_session.run_in_session(
        target, lambda session: table_commands.table_location(session, table)
    )
    raise typer.Exit(
        0 if verify_command.verify_table(name, target, cluster, output, deadline=timeout, heal=heal) else 1
    )


DroppedName = Annotated[
    str,
    typer.Argument(help="Deleted table, such as orders; use orders.UID if several had that name.", metavar="TABLE"),
]


@command(LOCAL, KUBE)
def dropped(output: OutputOption = Output.TABLE, *, target: Target) -> None:
    """List deleted tables whose data is kept."""
    cluster_session.run_in_session(target, lambda session: dropped_commands.dropped(session, output))


@command(LOCAL, KUBE)
def undelete(
    table: DroppedName,
    wait: Annotated[bool, typer.Option(help="Wait until the table is restored.")] = True,
    output: OutputOption = Output.TABLE,
    *,
    target: Target,
) -> None:
    """Restore a deleted table with its data."""
    cluster_session.run_in_session(target, lambda session: dropped_commands.undelete(session, table, output, wait=wait))


@command(LOCAL, KUBE)
def purge(
    table: DroppedName,
    wait: Annotated[bool, typer.Option(help="Wait until all stores have removed the data.")] = True,
    output: OutputOption = Output.TABLE,
    *,
    target: Target,
) -> None:
    """Remove the data of a deleted table now. The table can no longer be undeleted."""
    cluster_session.run_in_session(target, lambda session: dropped_commands.purge(session, table, output, wait=wait))


# Stores


@command(LOCAL, KUBE)
def drain(
    store: StoreName,
    undo: Annotated[bool, typer.Option("--undo", help="Let the store take replicas again, like undrain.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the store is empty.")] = False,
    output: OutputOption = Output.TABLE,
    *,
    target: Target,
) -> None:
    """Move all replicas off a store."""
    cluster_session.run_in_session(
        target, lambda session: table_commands.drain(session, store, output, undo=undo, wait=wait)
    )


@command(LOCAL, KUBE)
def undrain(store: StoreName, output: OutputOption = Output.TABLE, *, target: Target) -> None:
    """End the drain of a store. It takes replicas again."""
    cluster_session.run_in_session(
        target, lambda session: table_commands.drain(session, store, output, undo=True, wait=False)
    )


@command(LOCAL, KUBE, name="force-delete")
def force_delete_resource(
    resource: ResourceName,
    wait: Annotated[bool, typer.Option(help="Wait until the resource is gone.")] = True,
    output: OutputOption = Output.TABLE,
    *,
    target: Target,
) -> None:
    """Finish a deletion that is stuck. It no longer waits for stores, pods or etcd."""
    cluster_session.run_in_session(
        target, lambda session: force_delete.force_delete(session, resource, output, wait=wait)
    )


@command(LOCAL, KUBE, hidden=True)
def release(
    what: Annotated[str, typer.Argument(help="Store or resource.", autocompletion=store_names)],
    wait: Annotated[bool, typer.Option(help="Wait until the resource is gone.")] = True,
    output: OutputOption = Output.TABLE,
    *,
    target: Target,
) -> None:
    """Undrain a store, or force-delete a resource; a hidden alias for one version."""
    if "/" in what:
        force_delete_resource(what, wait, output, target=target)
    else:
        undrain(what, output, target=target)
