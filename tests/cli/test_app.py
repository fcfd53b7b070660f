"""The command line: fast help, shell completion, exit codes, and errors with a remedy."""

from __future__ import annotations

import asyncio
import inspect
import os
import resource
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from typer.models import CommandInfo
from typer.testing import CliRunner

from evenkeel.cli import cluster_session, force_delete, table_commands
from evenkeel.cli.app import app
from evenkeel.cli.cli_reference import render
from evenkeel.cli.local_app import local
from evenkeel.cli.terminal_output import size, span

COMMAND = Path(sys.executable).parent / "evenkeel"
VERBS = [command.name or command.callback.__name__ for command in app.registered_commands if command.callback]
HEAVY = ("aetcd", "aiohttp", "duckdb", "grpc", "kubernetes", "numpy", "pyarrow", "pydantic", "rich", "yaml")


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, **environment}
    return subprocess.run([COMMAND, *arguments], capture_output=True, text=True, check=False, env=variables)


def test_help_is_quick() -> None:
    """Help takes less than half a second of CPU time."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert run("--help").returncode == 0
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime) < 0.5


def test_nothing_heavy_is_imported_for_help() -> None:
    """Help imports no client of etcd or Kubernetes, no validation and no rendering."""
    code = f"import sys; from evenkeel.cli.app import app; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_commands(shell: str) -> None:
    """A shell that asks for what completes `ha` gets `hand-over`."""
    asked = {"COMP_WORDS": "evenkeel ha", "COMP_CWORD": "1", "_TYPER_COMPLETE_ARGS": "evenkeel ha"}
    done = run(_EVENKEEL_COMPLETE=f"complete_{shell}", _TYPER_COMPLETE_FISH_ACTION="get-args", **asked)
    assert "hand-over" in done.stdout
    assert "validate" not in done.stdout


def test_without_a_cluster_no_names_are_completed(tmp_path: Path) -> None:
    """Completion without a cluster prints nothing, not even an error."""
    asked = {"COMP_WORDS": "evenkeel partitions ", "COMP_CWORD": "2", "EVENKEEL_LOCAL": str(tmp_path)}
    done = run(_EVENKEEL_COMPLETE="complete_bash", **asked)
    assert (done.stdout.strip(), done.stderr) == ("", "")


def test_local_is_the_default(tmp_path: Path) -> None:
    """`evenkeel --local` is `evenkeel`."""
    said = [run(*more, "get", "tables", EVENKEEL_LOCAL=str(tmp_path)).stderr for more in ((), ("--local",))]
    assert said[0] == said[1]
    assert "is not running: start it with `evenkeel local up`" in said[0]


def test_completion_can_be_installed(tmp_path: Path) -> None:
    """`--install-completion` installs the script for the shell."""
    done = subprocess.run(
        ["bash", "-c", f"'{COMMAND}' --install-completion; echo done"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "HOME": str(tmp_path)},
    )
    assert "bash completion installed" in done.stdout
    [script] = tmp_path.glob(".bash_completions/*")
    assert "_EVENKEEL_COMPLETE=complete_bash" in script.read_text()


@pytest.mark.parametrize("verb", [[verb] for verb in VERBS] + [["local", verb] for verb in ("up", "down", "logs")])
def test_every_command_has_help(verb: list[str]) -> None:
    """The help of every command starts with a sentence."""
    result = CliRunner().invoke(app, [*verb, "--help"])
    assert result.exit_code == 0
    said = [line for line in result.output.splitlines() if line.startswith("  ")]
    assert "." in said[0] + said[1]


@pytest.mark.parametrize(
    ("former", "verb"),
    [
        ("release main-0", "undrain main-0"),
        ("release table/orders --no-wait", "force-delete table/orders --no-wait"),
        ("transfer-leader orders 3 main-1", "hand-over orders 3 main-1"),
        ("transfer-leader orders 3 --release", "hand-over orders 3 --release"),
    ],
)
def test_former_verbs_are_hidden_aliases(former: str, verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They do the same as the verb that replaces them, and neither help nor docs/cli.md lists them."""
    calls: list[tuple[Any, ...]] = []

    def record(name: str) -> Callable[..., Any]:
        async def call(_session: object, *arguments: Any, **options: Any) -> None:
            calls.append((name, arguments, options))

        return call

    def run_without_cluster(_target: object, work: Callable[[object], Awaitable[None]]) -> None:
        asyncio.run(work(None))  # type: ignore[arg-type]

    monkeypatch.setattr(cluster_session, "run_in_session", run_without_cluster)
    for module, name in ((table_commands, "drain"), (table_commands, "hand_over"), (force_delete, "force_delete")):
        monkeypatch.setattr(module, name, record(name))
    for arguments in (former, verb):
        assert CliRunner().invoke(app, arguments.split()).exit_code == 0
    assert len(calls) == 2
    assert calls[0] == calls[1]
    assert f"  {former.split(maxsplit=1)[0]} " not in CliRunner().invoke(app, ["--help"]).output
    assert f"### evenkeel {former.split(maxsplit=1)[0]} " not in render("<!-- commands -->\n<!-- end -->")


@pytest.mark.parametrize("verb", [*app.registered_commands, *local.registered_commands])
def test_every_command_can_print_json(verb: CommandInfo) -> None:
    """Every command has the option --output."""
    assert verb.callback is not None
    assert "output" in inspect.signature(verb.callback).parameters


@pytest.mark.parametrize(
    "arguments",
    [
        "scale table/orders",
        "scale table/orders --replicas 0",
        "scale table/orders --replicas many",
        "hand-over orders 3",
        "hand-over orders 3 main-1 --release",
        "hand-over orders x main-1",
        "hand-over orders -- -1 main-1",
        "local kill main-0 --undo --once",
        "local up --stores 0",
        "local logs main-0 -n 0",
        "get tables -o yaml",
        "wait table/orders --timeout -1",
        "plan orders --add-stores -1",
        "apply",
        "apply -f nowhere.yaml",
    ],
)
def test_wrong_usage_is_2(arguments: str) -> None:
    """Wrong usage prints the usage before it connects to a cluster."""
    result = CliRunner().invoke(app, arguments.split())
    assert result.exit_code == 2
    assert "Usage:" in result.output


@pytest.mark.parametrize(
    "arguments",
    ["get tables", "status", "partitions orders", "plan orders", "drain main-0", "sql select", "local status"],
)
def test_without_a_cluster_the_error_says_how_to_start_one(tmp_path: Path, arguments: str) -> None:
    """The error has one line, exit code 1 and no traceback."""
    done = run(*arguments.split(), EVENKEEL_LOCAL=str(tmp_path / "none"))
    assert (done.returncode, done.stdout) == (1, "")
    where = tmp_path / "none"
    assert done.stderr == f"error: the local cluster in {where} is not running: start it with `evenkeel local up`\n"


def test_stopping_a_cluster_that_is_not_running(tmp_path: Path) -> None:
    """It is not an error."""
    done = run("local", "down", "--dir", str(tmp_path / "none"))
    assert (done.returncode, done.stdout) == (0, f"no local cluster is running in {tmp_path / 'none'}\n")


def test_wiping_a_directory_without_a_cluster(tmp_path: Path) -> None:
    """Nothing is deleted, and the output says so."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "mine.txt").write_text("")
    done = run("local", "down", "--wipe", "--dir", str(tmp_path))
    assert (done.returncode, done.stdout) == (0, f"no local cluster in {tmp_path}; nothing was deleted\n")
    assert (tmp_path / "logs" / "mine.txt").exists()


def test_logs_without_a_cluster(tmp_path: Path) -> None:
    """The error says that no cluster was ever started."""
    done = run("local", "logs", "main-0", "--dir", str(tmp_path / "none"))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"error: no local cluster was ever started in {tmp_path / 'none'}: ")


def test_invalid_files_are_refused_before_anything_is_applied(tmp_path: Path) -> None:
    """The error lists every problem with its line."""
    (tmp_path / "bad.yaml").write_text("apiVersion: evenkeel.dev/v1alpha1\nkind: Tabel\n")
    done = run("apply", "-f", str(tmp_path / "bad.yaml"), EVENKEEL_LOCAL=str(tmp_path))
    assert done.returncode == 1
    assert 'bad.yaml:2: kind: got "Tabel"; did you mean Table?' in done.stderr


def test_a_closed_pipe_is_no_traceback() -> None:
    """`evenkeel ... | head` prints no error."""
    script = f"'{COMMAND}' validate -f examples -o json | head -n 1"
    root = Path(__file__).parents[2]
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False, cwd=root)
    assert (done.stdout, done.stderr) == ("{\n", "")


@pytest.mark.parametrize(
    ("count", "shown"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (5 << 20, "5.0 MiB"), (3 << 50, "3072.0 TiB")]
)
def test_sizes(count: int, shown: str) -> None:
    """Sizes are printed in a suitable unit."""
    assert size(count) == shown


@pytest.mark.parametrize(("seconds", "shown"), [(0, "0s"), (119, "119s"), (120, "2m"), (7200, "2h"), (200000, "2d")])
def test_spans(seconds: float, shown: str) -> None:
    """Durations are printed like the ages of kubectl."""
    assert span(seconds) == shown
