"""The bench runner, on subjects made up for it."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from rich.console import Console

import bench
from bench.__main__ import choose, discover, main
from bench._turns import in_turn, median_row
from bench.report import Report, Row

FAST = Row("fast", "one million partitions", 1_234_567.8, "moves", 2_000_000.0, 0.6173)
SLOW = Row("slow", "no reference", 0.02, "s")

Rows = Callable[[], Iterator[Row]]


def install(monkeypatch: pytest.MonkeyPatch, folder: Path, **benches: Rows) -> None:
    """Make `bench.<name>` exist both on disk, to be discovered, and in memory, to be run."""
    for name, rows in benches.items():
        (folder / f"{name}.py").touch()
        module = ModuleType(f"bench.{name}")
        module.__dict__["rows"] = rows
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(bench, "__path__", [str(folder)])


def failing() -> Iterator[Row]:
    yield Row("broken", "before the failure", 1.0, "s")
    raise RuntimeError("etcd went away")


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return tmp_path / "results" / "latest.jsonl"


def written(results: Path) -> list[Row]:
    return [Row(**json.loads(line)) for line in results.read_text().splitlines()]


def test_all_benches_run_by_default(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every discovered bench is run; the file holds its rows and the pipe one line for each."""
    install(monkeypatch, tmp_path, fast=lambda: iter([FAST]), slow=lambda: iter([SLOW]))

    assert main([], results=results) == 0

    assert written(results) == [FAST, SLOW]
    output = capsys.readouterr().out
    assert "fast (1 of 2)" in output
    assert "one million partitions" in output
    assert "1,234,568" in output


def test_only_the_named_bench_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, results: Path) -> None:
    """Naming a bench leaves the others alone, and replaces what an earlier run wrote."""
    install(monkeypatch, tmp_path, fast=lambda: iter([FAST]), slow=lambda: iter([SLOW]))

    main([], results=results)
    main(["slow"], results=results)

    assert written(results) == [SLOW]


def test_json_keys_are_the_documented_ones(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, results: Path) -> None:
    """A line has exactly the keys that readers of the file rely on, absent figures being null."""
    install(monkeypatch, tmp_path, slow=lambda: iter([SLOW]))

    main([], results=results)

    assert json.loads(results.read_text()) == {
        "bench": "slow",
        "case": "no reference",
        "value": 0.02,
        "unit": "s",
        "reference": None,
        "ratio": None,
    }


def test_unknown_name_is_refused_with_what_there_is() -> None:
    """A mistyped name runs nothing and lists the names there are."""
    with pytest.raises(SystemExit, match=r"unknown benchmark: plannre; available: etcd, planner"):
        choose(["planner", "plannre"], available=["etcd", "planner"])


def test_a_failing_bench_does_not_stop_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was measured before and after a failure is kept; the exit status and the message tell of it."""
    install(monkeypatch, tmp_path, broken=failing, slow=lambda: iter([SLOW]))

    assert main([], results=results) == 1

    assert [row.bench for row in written(results)] == ["broken", "slow"]
    errors = capsys.readouterr().err
    assert "etcd went away" in errors
    assert "failed: broken" in errors


def test_helpers_are_not_benches(tmp_path: Path) -> None:
    """The runner's own modules and those with a leading underscore are not run."""
    for name in ("__main__", "report", "_ignite", "planner"):
        (tmp_path / f"{name}.py").touch()

    assert discover([str(tmp_path)]) == ["planner"]


def test_terminal_gets_a_table() -> None:
    """On a terminal the rows stand in one table, without the progress line once all is done."""
    screen = io.StringIO()
    with Report(Console(file=screen, force_terminal=True, width=120), io.StringIO()) as report:
        report.running("fast", position=1, count=1)
        report.add(FAST)

    *_, last_frame = screen.getvalue().split("┏")
    assert "1,234,568" in last_frame
    assert "1 of 1" not in last_frame


async def test_sides_take_turns() -> None:
    """Sides are measured one after the other, again and again, and the first turn does not count."""
    called: list[str] = []

    def side(name: str) -> Callable[[], Awaitable[float]]:
        async def window() -> float:
            called.append(name)
            return float(len(called))

        return window

    assert await in_turn(side("ours"), side("theirs"), windows=2) == [(3.0, 4.0), (5.0, 6.0)]
    assert called == ["ours", "theirs"] * 3


def test_the_median_ratio_is_shown() -> None:
    """Value and reference are of one turn, the one whose ratio is in the middle."""
    row = median_row("raft", "case", "ms", [(9.0, 1.0), (2.0, 4.0), (3.0, 1.0)])
    assert row == Row("raft", "case", 3.0, "ms", 1.0, 3.0)
