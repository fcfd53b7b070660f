"""The command reports expected errors in one line, never with a traceback."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from evenkeel_raft.core.raft_types import Conf
from evenkeel_raft.host.host import Host
from evenkeel_raft.host.replica_label import ReplicaLabel, encode_label
from evenkeel_raft.log.log_disk import FileDisk
from evenkeel_raft.log.log_records import Created
from evenkeel_raft.log.shared_log import SharedLog
from evenkeel_raft.process.main import main
from evenkeel_raft.shared.raft_groups import MetastoreMark

LEAST = ("--store", "s1", "--store-cluster", "main", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0")


def failure(capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    """Run the command, which must fail; return its error message."""
    assert main([*LEAST, *flags]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    assert line.startswith("error: ")
    return line


@pytest.fixture
def busy() -> Iterator[int]:
    """A port in use."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_invalid_directories(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The error names the path and the reason."""
    (tmp_path / "file").touch()
    assert "file/log for the log: Not a directory" in failure(capsys, "--data", str(tmp_path / "file"))
    assert "/proc/x/log for the log: No such file" in failure(capsys, "--data", "/proc/x")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "inbox").touch()
    assert "data/inbox: File exists" in failure(capsys, "--data", str(tmp_path / "data"))


def test_invalid_sockets(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Missing directories, long paths and existing files are reported."""
    (tmp_path / "file").touch()
    data = ("--data", str(tmp_path / "data"))
    missing = failure(capsys, *data, "--socket", str(tmp_path / "no" / "s"))
    assert "no/s: No such file or directory" in missing
    assert "at most 107" in failure(capsys, *data, "--socket", "/tmp/" + "x" * 200)
    assert "the file exists and is not a socket" in failure(capsys, *data, "--socket", str(tmp_path / "file"))


def test_invalid_ports(capsys: pytest.CaptureFixture[str], tmp_path: Path, busy: int) -> None:
    """Ports in use and foreign addresses are reported."""
    data = ("--data", str(tmp_path / "data"))
    at = f"127.0.0.1:{busy}"
    assert f"cannot listen for peers on {at}: Address already in use" in failure(capsys, *data, "--listen", at)
    assert f"cannot serve HTTP on {at}" in failure(capsys, *data, "--http", at)
    assert "cannot listen for peers on 192.0.2.1:1" in failure(capsys, *data, "--listen", "192.0.2.1:1")


def test_invalid_certificates(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Invalid certificates are reported at the start, not with the first peer."""
    (tmp_path / "pem").write_text("nonsense")
    files = [text for what in ("ca", "cert", "key") for text in (f"--tls-{what}", str(tmp_path / "pem"))]
    data = ("--data", str(tmp_path / "data"))
    assert "cannot load the TLS files" in failure(capsys, *data, *files)
    (tmp_path / "pem").unlink()
    assert "pem does not exist" in failure(capsys, *data, *files)


def test_a_directory_in_use(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Two sidecars must not share a log."""
    disk = FileDisk(tmp_path / "data" / "log")
    assert "another process has this log open" in failure(capsys, "--data", str(tmp_path / "data"))
    disk.close()


def test_foreign_logs_are_rejected(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Logs of another store or cluster, of a newer version, or with malformed labels or identity are rejected."""
    data = tmp_path / "data"
    for label, said in (
        (
            encode_label(ReplicaLabel("t.1", 7, "s2", Conf(), "/evenkeel/default/main/")),
            "t.1/7 that belongs to store s2",
        ),
        (encode_label(ReplicaLabel("t.1", 7, "s1", Conf(), "/evenkeel/x/y/")), "belongs to cluster /evenkeel/x/y/"),
        (b"\xff", "cannot decode the replica label"),
        (b"\x94\xa1\xff\x07\xa2s1\xc0", "cannot decode the replica label"),
    ):
        log, _ = SharedLog.open(FileDisk(data / "log"))
        record = Created(5, 1, 0, label)
        log.heads.admit(record)
        log.write([record])
        log.close()
        assert said in failure(capsys, "--data", str(data))
        for file in (data / "log").iterdir():
            file.unlink()
    (data / "log" / "volume.json").write_text('{"format":99,"volume":"x"}')
    assert "format 99, but this version reads up to" in failure(capsys, "--data", str(data))
    (data / "log" / "volume.json").write_text("{")
    assert "cannot read the volume's identity" in failure(capsys, "--data", str(data))


def test_a_disk_that_fails_ends_the_process(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed sync ends the process with status 1; the next process recovers from the disk."""

    async def fail(host: Host) -> None:
        monkeypatch.setattr(FileDisk, "sync", broken_sync)
        await host.save_metastore_mark(MetastoreMark(1, 1))

    def broken_sync(_: FileDisk, name: str) -> None:
        raise OSError(5, "Input/output error", name)

    opened = Host.open

    async def open_and_fail(*arguments: object, **options: object) -> Host:
        host = await opened(*arguments, **options)  # type: ignore[arg-type]
        asyncio.get_running_loop().call_later(0.1, lambda: host._context.tasks.spawn(fail(host)))
        return host

    monkeypatch.setattr(Host, "open", open_and_fail)
    assert main([*LEAST, "--data", str(tmp_path / "data")]) == 1
    assert "error: the disk failed; restart the process to recover: [Errno 5]" in capsys.readouterr().err
