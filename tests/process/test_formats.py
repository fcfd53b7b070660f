"""Each release reads what the other writes: messages, log records, snapshots and metastore records."""

from __future__ import annotations

import base64
import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from evenkeel_raft.log.log_disk import FileDisk
from evenkeel_raft.log.log_volume import close_to_first_release
from evenkeel_raft.log.shared_log import SharedLog
from evenkeel_store.engine.log_entries import Hash, LogTime, encode_entry
from evenkeel_store.engine.snapshot_files import write_files
from evenkeel_store.engine.snapshot_throttle import SnapshotThrottle
from tests.process.previous import previous_python
from tests.store.support import Bench, columns

SCRIPT: Final = Path(__file__).with_name("formats.py")
NEW: Final = {
    ("socket: sidecar", "version"): "sent only to stores whose hello supports more than version 1",
    ("socket: store", "size"): "sent only to sidecars whose hello says that they take it",
    ("store: entry", "log_time"): "Feature.LOG_TIME",
    ("record: Adoption", ""): "the key `adoption`, which the first release ignores",
    ("record: ClusterVersion", ""): "the key `version`, which the first release ignores",
    ("record: Dropped", ""): "a field of TableRecord, which the first release ignores",
    ("record: LoadSlice", ""): "Feature.SPLIT_LOAD",
    ("record: StoreSettings", ""): "the key `settings`, which the first release ignores",
    **{
        (f"resource: {kind}Status", condition): "Feature.CONDITION_TYPES"
        for kind in ("StoreCluster", "Table", "PartitionAssignment", "RebalancePlan")
        for condition in ("Available", "Reconciling", "Stalled", "MetastoreMismatch")
    },
}
"""What the previous release cannot read, and why it never has to.

A new kind of message, a new record or a new value of an enum fails the tests below until it stands here. Gate it first:
the reason names the Feature, or what else keeps it from a process of the previous release.
"""

GONE: Final = {
    ("record: StoreState", "replace"): "the first release read it and never wrote it",
    ("resource: TableStatus", "schemaVersion"): "the first release always wrote 0",
}
"""Fields of objects that this release does not read any more, and why nothing is lost."""


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> str:
    return previous_python(tmp_path_factory.mktemp("previous"))


def run(python: str, mode: str, examples: object = None) -> dict[str, list[Any]]:
    done = subprocess.run(
        [python, "-P", str(SCRIPT), mode], input=json.dumps(examples), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def problems(written: dict[str, list[str]], *, by: str, read_by: str) -> list[str]:
    """Return the examples that writer and reader decode differently."""
    meant, found = run(by, "read", written), run(read_by, "read", written)
    return [
        f"{name}: {mine!r} is read as {theirs!r}"
        for name in written
        for mine, theirs in zip(meant[name], found[name], strict=True)
        if not agree(*(_known(name, value) for value in ((theirs, mine) if by == sys.executable else (mine, theirs))))
    ]


def _known(name: str, value: Any) -> Any:
    return {key: value[key] for key in value if (name, key) not in GONE} if isinstance(value, dict) else value


def agree(old: Any, new: Any) -> bool:
    """Whether the newer release decodes everything that the older one does; it may decode more fields."""
    if isinstance(old, list) and isinstance(new, list):
        return len(old) <= len(new) and all(agree(*pair) for pair in zip(old, new, strict=False))
    if isinstance(old, dict) and isinstance(new, dict):
        return old.keys() <= new.keys() and all(agree(old[key], new[key]) for key in old)
    return bool(old == new)


def test_this_release_reads_what_the_previous_one_wrote(previous: str) -> None:
    """Every format of the previous release can be read, because its processes run during a rolling update."""
    written = run(previous, "write")
    assert len(written) > 40
    assert sum(map(len, written.values())) > 200
    assert all(written.values()), "there is an example of each"
    assert problems(written, by=previous, read_by=sys.executable) == []


def test_the_previous_release_reads_what_this_one_writes(previous: str) -> None:
    """What the previous release cannot read is gated and listed in NEW with the reason."""
    written = run(sys.executable, "write")
    found = problems(written, by=sys.executable, read_by=previous)
    unexplained = [problem for problem in found if not any(_is_about(problem, *entry) for entry in NEW)]
    assert unexplained == []
    needless = [entry for entry in NEW if not any(_is_about(problem, *entry) for problem in found)]
    assert needless == [], "the previous release reads these: remove them from the list"


def _is_about(problem: str, name: str, kind: str) -> bool:
    return problem.startswith(f"{name}: ") and (not kind or f"['{kind}'" in problem or f"'type': '{kind}'" in problem)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (["vote", 1, 2, 3], ["vote", 1, 3]),
        (["vote", 1, 2, 3], ["vote", 1, 2]),
        ({"state": "ready", "size": 3}, {"state": "ready"}),
        ({"of": {"state": "ready", "size": 3}}, {"of": {"state": "ready"}}),
        ({"state": "ready"}, {"state": "resting"}),
        ([1, [2, 3]], "refused: Invalid value 'vote2'"),
    ],
)
def test_a_format_that_changes_without_a_gate_is_found(old: Any, new: Any) -> None:
    """A removed field, a new enum value or a new kind of message is detected."""
    assert agree(old, old)
    assert agree({"a": [1]}, {"a": [1, 2], "b": 3})
    assert not agree(old, new)


def result_of(python: str, code: str, *arguments: object) -> str:
    """Return the error with which a release exits."""
    command = [python, "-P", "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done
    return done.stderr.splitlines()[-1]


def test_the_previous_release_refuses_a_volume_of_a_later_version(previous: str, tmp_path: Path) -> None:
    """It does not know cluster versions and could lead partitions with one replica, but refuses the volume's format."""
    log, recovered = SharedLog.open(FileDisk(tmp_path))
    log.close()
    code = (
        "import pathlib, sys; from evenkeel_raft.log.disk import FileDisk; from evenkeel_raft.log.wal import SharedLog;"
        "SharedLog.open(FileDisk(pathlib.Path(sys.argv[1]))); raise SystemExit('opened')"
    )
    assert result_of(previous, code, tmp_path) == "opened"
    close_to_first_release(tmp_path, recovered.volume)
    assert "volume.json: the log has format 2, and this version reads up to 1" in result_of(previous, code, tmp_path)


@pytest.mark.parametrize("kept", [False, True])
def test_the_previous_release_refuses_snapshots_with_log_time(previous: str, tmp_path: Path, kept: bool) -> None:
    """Otherwise it would drop the log time and expire write tokens at other indexes than the other replicas."""
    (tmp_path / "snapshot").mkdir()
    bench = Bench(tmp_path / "data")
    bench.open()
    bench.apply(columns(), encode_entry(LogTime(70) if kept else Hash()))
    with contextlib.closing(bench.engine.database.cursor()) as cursor:
        write_files(cursor, bench.group.layout, bench.group.kept(), tmp_path / "snapshot", throttle=SnapshotThrottle())
    bench.close()
    code = (
        "import pathlib, sys; from evenkeel_store.snapshots import read_files;"
        "read_files(pathlib.Path(sys.argv[1]), index=2); raise SystemExit('read')"
    )
    result = result_of(previous, code, tmp_path / "snapshot")
    assert "format 3" in result if kept else result == "read", result


def test_examples_are_bytes() -> None:
    """Examples are encoded, and there are several for types with choices."""
    written = run(sys.executable, "write")
    states = {base64.b64decode(value).partition(b'"state":')[2][:12] for value in written["record: TableRecord"]}
    assert len(states) >= 3
    assert len(written["peer link"]) > len(written["snapshot: manifest"])
