"""The commands under `evenkeel local`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evenkeel.cli.completion import store_names
from evenkeel.cli.lazy import Later
from evenkeel.cli.options import Directory, Printed, Watch
from evenkeel.cli.output import Output
from evenkeel.cli.place import Local

if TYPE_CHECKING:
    from evenkeel.cli import local_commands, session
else:
    local_commands, session = Later("evenkeel.cli.local_commands"), Later("evenkeel.cli.session")

__all__ = ["local"]

local = typer.Typer(no_args_is_help=True, help="A whole cluster on this machine.")


@local.command()
def up(  # noqa: PLR0917 - options, which typer hands over by name
    stores: Annotated[int | None, typer.Option(min=1, help="Number of stores (3 for a new cluster).")] = None,
    name: Annotated[str, typer.Option(help="Name of the StoreCluster.")] = "main",
    rebalancers: Annotated[
        Path | None,
        typer.Option(exists=True, file_okay=False, help="Folder with rebalancers of your own; remembered."),
    ] = None,
    bytes_per_second: Annotated[
        str, typer.Option(help="Most bytes that a store copies for moves in a second, as in 20Mi; remembered.")
    ] = "",
    with_parent: Annotated[bool, typer.Option(help="End with the process that called, however it ends.")] = False,
    output: Printed = Output.TABLE,
    directory: Directory = None,
) -> None:
    """Start a cluster, or continue the one that exists."""
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
    wipe: Annotated[bool, typer.Option("--wipe", help="Delete all data of the cluster, too.")] = False,
    output: Printed = Output.TABLE,
    directory: Directory = None,
) -> None:
    """Stop the cluster; its data stays."""
    local_commands.down(directory, output, wipe=wipe)


@local.command()
def status(output: Printed = Output.TABLE, watch: Watch = False, directory: Directory = None) -> None:
    """List the stores and where they are."""
    session.watching(Local(directory), lambda found: local_commands.status(found, output, watch=watch))


@local.command()
def kill(
    store: Annotated[str, typer.Argument(help="The store, as in main-2.", autocompletion=store_names)],
    undo: Annotated[bool, typer.Option("--undo", help="Let it come back.")] = False,
    once: Annotated[bool, typer.Option("--once", help="Let it be started again at once.")] = False,
    output: Printed = Output.TABLE,
    directory: Directory = None,
) -> None:
    """Kill a store's processes, and keep them down until --undo."""
    if undo and once:
        raise typer.BadParameter("--undo and --once contradict each other")
    session.in_session(Local(directory), lambda found: local_commands.kill(found, store, output, undo=undo, once=once))


@local.command()
def logs(
    what: Annotated[
        str,
        typer.Argument(
            help="A store, as in main-2; or etcd, or supervisor.", metavar="STORE", autocompletion=store_names
        ),
    ],
    lines: Annotated[int, typer.Option("-n", "--lines", min=1, help="The last so many lines.")] = 40,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on as more is said.")] = False,
    output: Printed = Output.TABLE,
    directory: Directory = None,
) -> None:
    """Show what a store's processes said."""
    local_commands.logs(directory, what, output, lines=lines, follow=follow)
