"""The directory of a local cluster: files, ports and lock."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from evenkeel.errors import InvalidInputError
from evenkeel.local.child_processes import await_orphans
from evenkeel.local.cluster_directory import Layout, Ports, ProcessInfo, Running, StorePorts, default_directory

HOLD = """
import sys
from pathlib import Path
from typing import Any
from evenkeel.local.cluster_directory import Layout, Running
layout = Layout(Path(sys.argv[1]))
with layout.held():
    layout.publish_running(Running(pid=1, etcd="http://127.0.0.1:1"))
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    found = Layout(tmp_path / "a cluster")
    found.make()
    return found


@pytest.fixture
def holder(layout: Layout) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock of the cluster."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(layout.root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_default_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default follows XDG, and EVENKEEL_LOCAL overrides it."""
    monkeypatch.delenv("EVENKEEL_LOCAL", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert default_directory() == Path("/data/evenkeel/local")
    monkeypatch.setenv("EVENKEEL_LOCAL", "~/mine")
    assert default_directory() == Path.home() / "mine"


def test_a_cluster_that_is_not_running(layout: Layout) -> None:
    """A new directory, and one whose supervisor was killed, has no running cluster."""
    assert not layout.is_held()
    layout.publish_running(Running(pid=os.getpid(), etcd="http://127.0.0.1:1"))
    assert layout.running() is None


def test_one_supervisor_at_a_time(layout: Layout, holder: subprocess.Popen[str]) -> None:
    """The running supervisor can be found, and a second one is refused with its process id."""
    found = layout.running()
    assert found is not None
    assert found.etcd == "http://127.0.0.1:1"
    with pytest.raises(InvalidInputError, match="is already running as process 1"), layout.held():
        pass
    holder.kill()
    holder.wait()
    assert layout.running() is None
    with layout.held() as before:
        assert before == found
    with layout.held() as before:
        assert before is None


@pytest.mark.parametrize("depth", [1, 30])
def test_sockets_have_short_paths(tmp_path: Path, depth: int) -> None:
    """Socket paths are short for any depth of the cluster's directory, and unique for each cluster."""
    root = tmp_path.joinpath(*["a-rather-long-name"] * depth)
    socket = Layout(root).socket("a" * 40 + "-9999")
    assert len(os.fsencode(socket)) <= 107
    assert socket.parent != Layout(root / "other").sockets


def test_a_long_temporary_directory_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Sockets go to /tmp instead."""
    monkeypatch.setattr(tempfile, "gettempdir", lambda: "/tmp/" + "x" * 100)
    assert Layout(tmp_path).sockets.parent == Path("/tmp")


def test_a_socket_directory_of_another_user_is_refused(
    layout: Layout, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Another user cannot create the directory first and read the traffic."""
    monkeypatch.setattr(layout, "sockets", tmp_path / "sockets")
    layout.make_sockets()
    layout.make_sockets()
    layout.sockets.chmod(0o755)
    with pytest.raises(InvalidInputError, match="is accessible to other users"):
        layout.make_sockets()
    layout.sockets.rmdir()
    layout.sockets.symlink_to(tmp_path)
    with pytest.raises(InvalidInputError, match="is accessible to other users"):
        layout.make_sockets()


def test_a_directory_that_cannot_be_created(tmp_path: Path) -> None:
    """The error names the reason and the remedy."""
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInputError, match=r"cannot create a cluster in .*file/c: Not a directory; .*--dir"):
        Layout(tmp_path / "file" / "c").make()


def test_ports_are_kept(layout: Layout) -> None:
    """Saved ports are read back; a damaged file counts as empty."""
    ports = Ports(etcd=(1, 2), stores={"main-0": StorePorts(3, 4, 5, 6)})
    layout.save_ports(ports)
    assert Layout(layout.root).ports() == ports
    (layout.root / "ports.json").write_text('{"main-0": [')
    assert layout.ports() == Ports()


def test_wiping_removes_only_files_of_the_cluster(layout: Layout) -> None:
    """Other files and the directory stay."""
    layout.log("x").write_text("")
    (layout.root / "mine.txt").write_text("")
    layout.wipe()
    assert [path.name for path in layout.root.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize("name", ["etcd", "logs", "stores"])
def test_directories_of_others_are_neither_used_nor_wiped(tmp_path: Path, name: str) -> None:
    """An existing folder, such as `logs` of a project, is refused, because `wipe` would delete it."""
    (tmp_path / name).mkdir()
    (tmp_path / name / "mine.txt").write_text("")
    layout = Layout(tmp_path)
    layout.wipe()
    with pytest.raises(InvalidInputError, match=rf"contains {name}, which does not belong to a local cluster; .*--dir"):
        layout.make()
    assert [path.name for path in tmp_path.rglob("*")] == [name, "mine.txt"]


def test_wiping_without_a_cluster(tmp_path: Path) -> None:
    """A directory that never had a cluster stays unchanged."""
    Layout(tmp_path / "none").wipe()
    Layout(tmp_path).wipe()
    assert list(tmp_path.iterdir()) == []


def test_folders_of_rebalancers(layout: Layout, tmp_path: Path) -> None:
    """The last folder is used, and its link is wiped with the cluster; a real folder stays."""
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "mine.py").write_text("")
    layout.link_rebalancers(tmp_path / "one")
    layout.link_rebalancers(tmp_path / "two")
    assert (layout.rebalancers / "mine.py").exists()
    layout.wipe()
    assert not layout.root.exists()
    assert (tmp_path / "two" / "mine.py").exists()
    layout.make()
    layout.rebalancers.mkdir()
    with pytest.raises(InvalidInputError, match="is already a folder"):
        layout.link_rebalancers(tmp_path / "one")


def test_a_running_cluster_cannot_be_wiped(layout: Layout, holder: subprocess.Popen[str]) -> None:
    """A cluster that was started before the wipe keeps its data."""
    layout.log("x").write_text("")
    with pytest.raises(InvalidInputError, match="is already running"):
        layout.wipe()
    assert layout.log("x").exists()
    assert holder.poll() is None


def test_a_lock_of_a_directory_that_was_wiped(layout: Layout) -> None:
    """A process that waited for it takes the new lock; otherwise two could run the same cluster."""
    waiting, holding, done = threading.Event(), threading.Event(), threading.Event()

    def wait() -> None:
        waiting.set()
        with Layout(layout.root).held():
            holding.set()
            assert done.wait(30)

    thread = threading.Thread(target=wait)
    with layout.held():
        old = (layout.root / "lock").open("rb")
        thread.start()
        assert waiting.wait(30)
        layout._remove()
    assert holding.wait(30)
    with old, (layout.root / "lock").open("rb") as new:
        assert os.fstat(old.fileno()).st_ino != os.fstat(new.fileno()).st_ino
    assert layout.is_held()
    done.set()
    thread.join()
    assert not layout.is_held()


@pytest.mark.parametrize("step", ["touch", "mkdir", "open"])
def test_a_wipe_between_two_steps_of_a_start(layout: Layout, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """A start during the wipe of another process creates the directory again."""
    layout.make()
    wiped: list[Path] = []

    def wipe_first(path: Path, *arguments: Any, **options: Any) -> Any:
        if path.parent == layout.root and not wiped:
            wiped.append(path)
            layout._remove()
        return original(path, *arguments, **options)

    original = getattr(Path, step)
    monkeypatch.setattr(Path, step, wipe_first)
    with layout.held():
        assert wiped
        assert layout.logs.is_dir()
        assert layout.stores.is_dir()


def test_processes_of_a_killed_supervisor_are_awaited(layout: Layout) -> None:
    """Only processes whose command line has the cluster's directory count; a reused process id does not."""
    command = [sys.executable, "-c", "input()"]
    with (
        subprocess.Popen([*command, str(layout.root)], stdin=subprocess.PIPE) as ours,
        subprocess.Popen(command, stdin=subprocess.PIPE) as other,
    ):
        processes = {"main-0 raft": ProcessInfo(ours.pid, 0), "main-0 store": ProcessInfo(other.pid, 0)}

        async def wait() -> None:
            waiting = asyncio.ensure_future(await_orphans(Running(pid=1, etcd="", processes=processes), layout.root))
            await asyncio.sleep(0)
            assert not waiting.done()
            ours.kill()
            await asyncio.to_thread(ours.wait)
            await waiting

        asyncio.run(wait())
        assert other.poll() is None
        other.kill()
