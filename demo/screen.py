"""What the demo shows: a live table of the keys in a terminal, plain lines of what changed in a pipe."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from demo.sidecars import ModelledSidecars
from evenkeel.model.views import Move
from evenkeel.protocol.partition import PartitionView
from evenkeel.protocol.records import Peer, Role

__all__ = ["Screen"]

SHOWN_MOVES = 12


class Screen:
    """Where the demo's output goes."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._live: Live | None = None
        self._last: dict[int, str] = {}

    def say(self, text: str) -> None:
        """One line of the story."""
        self.console.print(text, soft_wrap=not self.console.is_terminal)

    def chapter(self, title: str) -> None:
        """What comes next."""
        self.console.print()
        self.console.rule(title, align="left", characters="-" if not self.console.is_terminal else "─")

    def moves(self, moves: Sequence[Move]) -> None:
        """A plan with its reasons."""
        table = Table(title=f"{len(moves)} moves", title_justify="left", box=None, padding=(0, 2, 0, 0))
        for heading in ("partition", "from", "to", "because"):
            table.add_column(heading)
        for move in moves[:SHOWN_MOVES]:
            table.add_row(str(move.partition), move.source or "-", move.target or "-", move.reason)
        self.console.print(table)
        if len(moves) > SHOWN_MOVES:
            self.console.print(f"... and {len(moves) - SHOWN_MOVES} more")

    def keys(self, pairs: Iterable[tuple[str, bytes]]) -> None:
        """Some keys as they stand in etcd."""
        for key, value in pairs:
            self.console.print(f"[cyan]{key}[/]", highlight=False)
            self.console.print(f"  {value.decode()}", markup=False, highlight=False, soft_wrap=True)

    @contextmanager
    def watching(self, sidecars: ModelledSidecars) -> Iterator[None]:
        """Show the keys change for as long as this lasts."""
        self._last = {partition: _line(sidecars.view(partition)) for partition in sidecars.groups}
        if not self.console.is_terminal:
            yield
            return
        with Live(console=self.console, refresh_per_second=8, transient=True) as live:
            self._live = live
            try:
                yield
            finally:
                self._live = None

    def refresh(self, sidecars: ModelledSidecars, *, done: int, total: int) -> None:
        """Something has changed."""
        if self._live is not None:
            self._live.update(_picture(sidecars, done=done, total=total))
            return
        for partition in sidecars.groups:
            line = _line(sidecars.view(partition))
            if self._last.get(partition) != line:
                self._last[partition] = line
                self.console.print(f"partition {partition:>3}  {line}", markup=False, highlight=False, soft_wrap=True)


def _picture(sidecars: ModelledSidecars, *, done: int, total: int) -> RenderableType:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("partition", "leader", "stable", "pending", "planned", "stage"):
        table.add_column(heading)
    for partition, group in sorted(sidecars.groups.items()):
        view = sidecars.view(partition)
        style = "bold yellow" if view.lock else "yellow" if view.pending else ""
        table.add_row(
            str(partition),
            group.leader[0],
            _peers(view.stable.peers if view.stable else ()),
            " then ".join(_peers(step) for step in view.pending.queue) if view.pending else "",
            _peers(view.planned.peers) if view.planned else "",
            ("locked, " if view.lock else "") + group.stage if view.pending else "",
            style=style,
        )
    bar = Progress(TextColumn("partitions at their target"), BarColumn(), MofNCompleteColumn())
    bar.add_task("", total=total, completed=done)
    return Group(Panel(table, title="keys in etcd, live (raft groups are modelled)"), bar)


def _line(view: PartitionView) -> str:
    parts = [f"stable {_peers(view.stable.peers if view.stable else ())}"]
    if view.pending:
        parts.append("pending " + " then ".join(_peers(step) for step in view.pending.queue))
    if view.planned:
        parts.append(f"planned {_peers(view.planned.peers)}")
    if view.lock:
        parts.append("locked")
    return "  ".join(parts)


def _peers(peers: Iterable[Peer]) -> str:
    """Stores in short; learners in parentheses."""
    ordered = sorted(peers, key=lambda peer: (peer.role is not Role.VOTER, peer.store))
    return " ".join(peer.store if peer.role is Role.VOTER else f"({peer.store})" for peer in ordered)
