"""Terminal output: a live view in a terminal; plain lines in a pipe, several for a long step."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from demo.facts import Operation, Sample, Step, Verdict
from demo.statistics import latency

__all__ = ["Screen", "describe"]

_RECENT: Final = 5.0
_LINE_SECONDS: Final = 3.0


class Screen:
    """Prints the demo's output and records when each step began and ended."""

    def __init__(self, console: Console, *, began: float) -> None:
        """The console needs its own file: other output during a step is captured and printed as its lines."""
        self.steps: list[Step] = []
        self._console = console
        self._began = began
        self._title = ""
        self._sample: Callable[[], Sample | None] = lambda: None
        self._operations: Callable[[], Sequence[Operation]] = tuple
        self._done: Callable[[], tuple[int, int]] = lambda: (0, 0)

    def watch(self, sample: Callable[[], Sample], operations: Callable[[], Sequence[Operation]]) -> None:
        """Set what the live view shows from now on."""
        self._sample, self._operations = sample, operations

    def say(self, text: str, *, style: str = "") -> None:
        """Print one line."""
        self._console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)

    def verdicts(self, verdicts: Sequence[Verdict]) -> None:
        """Print the results of the checks."""
        for verdict in verdicts:
            mark, style = ("ok", "green") if verdict.holds else ("FAIL", "bold red")
            self.say(f"  {mark:<5} {verdict.what}: {verdict.detail}", style=style)

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print a table."""
        shown = Table(*head, box=None, padding=(0, 3, 0, 0), pad_edge=False)
        for row in rows:
            shown.add_row(*row)
        self._console.print(shown)

    @contextmanager
    def step(
        self, title: str, *, disturbs: bool = False, progress: Callable[[], tuple[int, int]] | None = None
    ) -> Iterator[None]:
        """Show a step while it runs, and record it when it ends."""
        began = time.monotonic()
        self._title, self._done = title, progress or (lambda: (0, 0))
        self.say(f"==> {title}", style="bold")
        with self._shown(), redirect_stdout(_Lines(lambda line: self.say(f"    {line}"))):
            yield
        ended = time.monotonic()
        self.steps.append(Step(title, began - self._began, ended - self._began, disturbs))
        self.say(f"    {ended - began:.1f} s", style="dim")

    @contextmanager
    def _shown(self) -> Iterator[None]:
        if self._console.is_terminal:
            with Live(console=self._console, get_renderable=self._picture, refresh_per_second=4, transient=True):
                yield
            return
        over = threading.Event()
        thread = threading.Thread(target=self._lines, args=(over,), name="lines", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _lines(self, over: threading.Event) -> None:
        while not over.wait(_LINE_SECONDS):
            if line := self._line():
                self.say(f"    {line}")

    def _line(self) -> str:
        done, total = self._done()
        tasks = [f"{done} of {total} tasks"] if total else []
        sample = self._sample()
        return "; ".join([*tasks, *describe(sample, self._recent())]) if sample is not None else "; ".join(tasks)

    def _recent(self) -> list[Operation]:
        now = time.monotonic() - self._began
        recent: list[Operation] = []
        for operation in reversed(self._operations()):
            if operation.began < now - _RECENT:
                break
            recent.append(operation)
        return recent

    def _picture(self) -> RenderableType:
        parts: list[RenderableType] = []
        done, total = self._done()
        if total:
            parts.append(ProgressBar(total=total, completed=done, width=60))
        sample = self._sample()
        if sample is not None:
            parts += [_stores(sample), Text("; ".join(describe(sample, self._recent())))]
        return Panel(Group(*parts), title=self._title, title_align="left") if parts else Text("    ...")


class _Lines(io.TextIOBase):
    """Forwards printed text line by line; CLI commands print directly, which would break the live view."""

    def __init__(self, on_line: Callable[[str], None]) -> None:
        self._on_line = on_line
        self._begun = ""

    def write(self, text: str, /) -> int:
        *lines, self._begun = (self._begun + text).split("\n")
        for line in lines:
            self._on_line(line)
        return len(text)


def describe(sample: Sample, recent: Sequence[Operation]) -> Iterator[str]:
    """Yield the current state in a few words."""
    yield f"{sample.moving} partitions changing"
    yield f"replicas {' '.join(map(str, sample.replicas.values()))}"
    yield f"leaders {' '.join(map(str, sample.leaders.values()))}"
    for kind in ("write", "read"):
        found = latency(recent, kind)
        if found.count:
            yield f"{kind}s {found.count / _RECENT:.0f}/s p50 {1000 * found.p50:.0f} ms p99 {1000 * found.p99:.0f} ms"


def _stores(sample: Sample) -> Table:
    table = Table("store", "replicas", "leads", box=None, padding=(0, 3, 0, 0))
    for store, replicas in sample.replicas.items():
        leads = sample.leaders.get(store, 0)
        table.add_row(store, f"{replicas:>3} {'▪' * replicas}", f"{leads:>3} {'★' * leads}")
    return table
