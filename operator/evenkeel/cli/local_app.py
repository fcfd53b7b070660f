"""The commands under `evenkeel local`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evenkeel.cli.lazy_module import LazyModule
from evenkeel.cli.options import Directory, Output, OutputOption, Watch
from evenkeel.cli.shell_completion import store_names
from evenkeel.cli.target_cluster import LocalTarget

if TYPE_CHECKING:
    from evenkeel.cli import cluster_session, local_commands
else:
    cluster_session = LazyModule("evenkeel.cli.cluster_session")
    local_commands = LazyModule("evenkeel.cli.local_commands")

__all__ = ["local"]

local = typer.Typer(no_args_is_help=True, help="Run a cluster on this machine.")


@local.command()
def up(  # noqa: PLR0917 - options, which typer hands over by name
    stores: Annotated[int | None, typer.Option(min=1, help="Number of stores; 3 for a new cluster.")] = None,
    name: Annotated[str, typer.Option(help="Name of the StoreCluster.")] = "main",
    rebalancers: Annotated[
        Path | None,
        typer.Option(exists=True, file_okay=False, help="Folder with user-defined rebalancers; kept for later starts."),
    ] = None,
    bytes_per_second: Annotated[
        str, typer.Option(help="Throttle of each store for moves, such as 20Mi; kept for later starts.")
    ] = "",
    with_parent: Annotated[bool, typer.Option(help="Stop the cluster when the calling process ends.")] = False,
    output: OutputOption = Output.TABLE,
    directory: Directory = None,
) -> None:
    """Start the cluster; create it if it does not exist."""
    local_commands.up(
        directory,
        name=name,
        stores=stores,
        throttle=bytes_per_second,
        rebalancers=rebalancers,
        with_parent=with_parent,
        output=output,
    )


@local.command()
def down(
    wipe: Annotated[bool, typer.Option("--wipe", help="Also delete all data of the cluster.")] = False,
    output: OutputOption = Output.TABLE,
    directory: Directory = None,
) -> None:
    """Stop the cluster; its data is kept."""
    local_commands.down(directory, output, wipe=wipe)


@local.command()
def status(output: OutputOption = Output.TABLE, watch: Watch = False, directory: Directory = None) -> None:
    """List the stores and their addresses."""
    cluster_session.run_until_interrupted(
        LocalTarget(directory), lambda session: local_commands.status(session, output, watch=watch)
    )


@local.command()
def kill(
    store: Annotated[str, typer.Argument(help="Store, such as main-2.", autocompletion=store_names)],
    undo: Annotated[bool, typer.Option("--undo", help="Start the store again.")] = False,
    once: Annotated[bool, typer.Option("--once", help="Let the supervisor restart the store at once.")] = False,
    output: OutputOption = Output.TABLE,
    directory: Directory = None,
) -> None:
    """Kill the processes of a store and keep them down until --undo."""
    if undo and once:
        raise typer.BadParameter("--undo and --once exclude each other")
    cluster_session.run_in_session(
        LocalTarget(directory), lambda session: local_commands.kill(session, store, output, undo=undo, once=once)
    )


@local.command()
def logs(
    what: Annotated[
        str,
        typer.Argument(
            help="Store, such as main-2; or etcd, or supervisor.", metavar="STORE", autocompletion=store_names
        ),
    ],
    lines: Annotated[int, typer.Option("-n", "--lines", min=1, help="Number of lines to show.")] = 40,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Follow the log.")] = False,
    output: OutputOption = Output.TABLE,
    directory: Directory = None,
) -> None:
    """Show the logs of a store, of etcd or of the supervisor."""
    local_commands.logs(directory, what, output, lines=lines, follow=follow)
