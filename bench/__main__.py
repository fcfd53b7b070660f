"""Run all benchmarks, or those named on the command line (`make bench ONLY=planner`)."""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol, cast

from rich.console import Console

import bench
from bench.report import Report, Row

RESULTS = Path(__file__).parent / "results" / "latest.jsonl"
NOT_BENCHES = {"__main__", "report"}


class Bench(Protocol):
    """The interface of a subject's module."""

    def rows(self) -> Iterator[Row]:
        """Measure, and yield each row as soon as it is known."""


def discover(search_path: Sequence[str]) -> list[str]:
    """Return the names of all subjects; modules with a leading underscore are helpers."""
    found = (module.name for module in pkgutil.iter_modules(search_path))
    return sorted(name for name in found if name not in NOT_BENCHES and not name.startswith("_"))


def choose(wanted: Sequence[str], *, available: Sequence[str]) -> list[str]:
    """Return the benchmarks to run; exit with the list of available ones if a name is unknown."""
    unknown = [name for name in wanted if name not in available]
    if unknown:
        raise SystemExit(f"error: unknown benchmark: {', '.join(unknown)}; available: {', '.join(available) or 'none'}")
    return list(wanted) or list(available)


def run(names: Sequence[str], report: Report) -> list[str]:
    """Run the benchmarks one after another; return those that failed."""
    failed = []
    for position, name in enumerate(names, start=1):
        report.running(name, position=position, count=len(names))
        try:
            for row in cast("Bench", importlib.import_module(f"bench.{name}")).rows():
                report.add(row)
        except Exception:
            traceback.print_exc()
            failed.append(name)
    return failed


def main(arguments: Sequence[str] | None = None, *, results: Path = RESULTS) -> int:
    """Run the selected benchmarks; return the exit status."""
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="BENCH", help="Run only these benchmarks.")
    names = choose(parser.parse_args(arguments).names, available=discover(bench.__path__))
    results.parent.mkdir(parents=True, exist_ok=True)
    console = Console()
    with results.open("w", encoding="utf-8") as file, Report(console, file) as report:
        failed = run(names, report)
    console.print(f"==> results: {results}", markup=False, highlight=False, soft_wrap=True)
    if failed:
        print(f"error: benchmarks failed: {', '.join(failed)}; see the traceback above", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
