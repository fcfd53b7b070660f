"""The command: what cannot work is one line that says why, never a traceback."""

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


def complaint(capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    """Run the command, which cannot work; return what it says."""
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


def test_directories_that_cannot_be(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The path is named, and what is wrong with it."""
    (tmp_path / "file").touch()
    assert "file/log: Not a directory" in complaint(capsys, "--data", str(tmp_path / "file"))
    assert "/proc/x/log: No such file" in complaint(capsys, "--data", "/proc/x")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "inbox").touch()
    assert "data/inbox: File exists" in complaint(capsys, "--data", str(tmp_path / "data"))


def test_sockets_that_cannot_be(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Missing folders, paths that are too long, files in the way."""
    (tmp_path / "file").touch()
    data = ("--data", str(tmp_path / "data"))
    missing = complaint(capsys, *data, "--socket", str(tmp_path / "no" / "s"))
    assert "no/s: No such file or directory" in missing
    assert "at most 107" in complaint(capsys, *data, "--socket", "/tmp/" + "x" * 200)
    assert "is in the way" in complaint(capsys, *data, "--socket", str(tmp_path / "file"))


def test_ports_that_cannot_be(capsys: pytest.CaptureFixture[str], tmp_path: Path, busy: int) -> None:
    """In use, or of a host that is not this one."""
    data = ("--data", str(tmp_path / "data"))
    at = f"127.0.0.1:{busy}"
    assert f"cannot listen for peers on {at}: Address already in use" in complaint(capsys, *data, "--listen", at)
    assert f"cannot serve HTTP on {at}" in complaint(capsys, *data, "--http", at)
    assert "cannot listen for peers on 192.0.2.1:1" in complaint(capsys, *data, "--listen", "192.0.2.1:1")


def test_certificates_that_cannot_be(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Found at the start, not by the first peer."""
    (tmp_path / "pem").write_text("nonsense")
    files = [text for what in ("ca", "cert", "key") for text in (f"--tls-{what}", str(tmp_path / "pem"))]
    data = ("--data", str(tmp_path / "data"))
    assert "cannot load the TLS files" in complaint(capsys, *data, *files)
    (tmp_path / "pem").unlink()
    assert "pem does not exist" in complaint(capsys, *data, *files)


def test_a_directory_in_use(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Two sidecars would destroy each other's records."""
    disk = FileDisk(tmp_path / "data" / "log")
    assert "another process has this log open" in complaint(capsys, "--data", str(tmp_path / "data"))
    disk.close()


def test_logs_that_are_not_ours(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Of another store, of another cluster, with labels of nobody's, of a newer version, damaged."""
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
        assert said in complaint(capsys, "--data", str(data))
        for file in (data / "log").iterdir():
            file.unlink()
    (data / "log" / "volume.json").write_text('{"format":99,"volume":"x"}')
    assert "format 99, and this version reads up to" in complaint(capsys, "--data", str(data))
    (data / "log" / "volume.json").write_text("{")
    assert "cannot read the volume's identity" in complaint(capsys, "--data", str(data))


def test_a_disk_that_fails_ends_the_process(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a status that says so; what comes next begins with what the disk has."""

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
