"""`evenkeel validate` and the entry point: output, exit codes, and no traceback for invalid input."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from typer.testing import CliRunner

from evenkeel.cli import main as entry
from evenkeel.cli.app import app
from evenkeel.errors import UnreachableError

EXAMPLES = Path(__file__).parents[2] / "examples"
BAD = """\
apiVersion: evenkeel.dev/v1alpha1
kind: Table
metadata: {name: orders}
spec:
  storeCluster: "[red]main[/red]"
  partitions: "8"
  schema: {columns: [{name: id, type: int64, nullable: false}], primaryKey: [id]}
"""


def run(*arguments: str, given: str | None = None) -> tuple[int, str]:
    result = CliRunner().invoke(app, arguments, input=given)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def test_valid_folder() -> None:
    """A folder of valid files is listed by kind, name and line, with exit code 0."""
    code, output = run("validate", "-f", str(EXAMPLES))
    assert code == 0
    lines = output.splitlines()
    assert lines[0].split() == ["KIND", "NAME", "SOURCE"]
    assert f"Table                default/orders          {EXAMPLES}/orders.yaml:15" in lines
    assert lines[-1] == f"{len(lines) - 2} valid"


def test_problems(tmp_path: Path) -> None:
    """Every problem has one unwrapped line, brackets and all, and the exit code is 1."""
    file = tmp_path / "orders.yaml"
    file.write_text(BAD)
    code, output = run("validate", "-f", str(file), "-f", str(EXAMPLES / "orders.yaml"))
    assert code == 1
    lines = output.splitlines()
    assert lines[-3].startswith(f'{file}:5: spec.storeCluster: got "[red]main[/red]"; allowed: a DNS name: at most 63')
    assert lines[-2] == (
        f'{file}:6: spec.partitions: got "8"; allowed: an integer from 1 to 1000000; drop the quotes: 8'
    )
    assert lines[-1] == "2 valid, 2 problems"


def test_json() -> None:
    """JSON output has the same as data."""
    code, output = run("validate", "-f", "-", "-o", "json", given=BAD)
    assert code == 1
    found = json.loads(output)
    assert found["valid"] is False
    assert found["resources"] == []
    assert found["problems"][1] == {
        "source": "stdin",
        "line": 6,
        "path": "spec.partitions",
        "text": 'got "8"; allowed: an integer from 1 to 1000000; drop the quotes: 8',
    }
    code, output = run("validate", "-f", str(EXAMPLES / "orders.yaml"), "--output", "json")
    assert code == 0
    assert json.loads(output)["resources"][0] == {
        "kind": "StoreCluster",
        "namespace": "default",
        "name": "main",
        "source": str(EXAMPLES / "orders.yaml"),
        "line": 2,
    }


def test_not_text(tmp_path: Path) -> None:
    """A file that is not UTF-8 is a problem with a line."""
    (tmp_path / "a.yaml").write_bytes(b"kind: Table\nname: \xff\xfe\n")
    (tmp_path / "b.yaml").write_text("\ufeff" + (EXAMPLES / "dry-run.yaml").read_text())
    code, output = run("validate", "-f", str(tmp_path))
    assert code == 1
    assert f"{tmp_path}/a.yaml:2: not UTF-8 text; save the file as UTF-8" in output
    assert "1 valid, 1 problem" in output


@pytest.mark.parametrize(
    "arguments", [["validate", "-f", "/nowhere.yaml"], ["validate"], ["validate", "-f", "-", "-o", "xml"], ["nonsense"]]
)
def test_wrong_commands(arguments: list[str]) -> None:
    """Wrong usage exits with 2."""
    assert run(*arguments)[0] == 2


def test_version() -> None:
    """The version is that of the distribution."""
    code, output = run("--version")
    assert code == 0
    assert output.startswith("evenkeel 0.")


def test_entry_point() -> None:
    """The command `evenkeel` is installed."""
    [found] = entry_points(group="console_scripts", name="evenkeel")
    assert found.load() is entry.main


def evenkeel(*arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-c", "from evenkeel.cli.main import main; main()", *arguments]
    return subprocess.run(command, input=given, capture_output=True, check=False)


def test_nothing_to_check() -> None:
    """Input without any resource is an error in one line, without a traceback."""
    result = evenkeel("validate", "-f", "-", given=b"# nothing\n")
    assert (result.returncode, result.stdout) == (1, b"")
    allowed = b"allowed: YAML or JSON files with apiVersion and kind, or their folders"
    assert result.stderr == b"error: -f: no resource found in -; " + allowed + b"\n"


def test_errors_have_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """An EvenkeelError is shown as its message alone."""

    def fail() -> None:
        raise UnreachableError("no etcd endpoint answers")

    monkeypatch.setattr("evenkeel.cli.app.app", fail)
    with pytest.raises(SystemExit, match="error: no etcd endpoint answers"):
        entry.main()


def test_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without typer, the error says what to install."""
    monkeypatch.setitem(sys.modules, "typer", None)
    monkeypatch.delitem(sys.modules, "evenkeel.cli.app")
    with pytest.raises(SystemExit, match=r"pip install 'evenkeel-operator\[cli\]'"):
        entry.main()


def test_plain_in_a_pipe(tmp_path: Path) -> None:
    """Output to a pipe has no escape sequences."""
    file = tmp_path / "bad.yaml"
    file.write_text(BAD)
    result = evenkeel("validate", "-f", str(file))
    assert result.returncode == 1
    assert b"\x1b" not in result.stdout + result.stderr


def test_colour_in_a_terminal(tmp_path: Path) -> None:
    """In a terminal the location is coloured."""
    file = tmp_path / "bad.yaml"
    file.write_text(BAD)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", "from evenkeel.cli.main import main; main()", "validate", "-f", str(file)]
    environment = {**{k: v for k, v in os.environ.items() if k != "NO_COLOR"}, "TERM": "xterm-256color"}
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, stdin=theirs, env=environment) as child:
        os.close(theirs)
        shown = b""
        while chunk := _read(ours):
            shown += chunk
    os.close(ours)
    assert child.returncode == 1
    assert f"\x1b[36m{file}:5\x1b[0m".encode() in shown


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # the other side is closed
        return b""
