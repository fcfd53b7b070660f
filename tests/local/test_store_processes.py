"""The two processes of a store."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

from evenkeel.local.child_processes import Child
from evenkeel.local.cluster_directory import Layout, StorePorts
from evenkeel.local.store_processes import StorePair
from evenkeel.model.storecluster import StoreCluster
from evenkeel_raft.process.options import Options, parse_options


def make_pair(directory: Path, throttles: dict[str, object]) -> StorePair:
    """A store that is not started."""
    document = {
        "apiVersion": "evenkeel.dev/v1alpha1",
        "kind": "StoreCluster",
        "metadata": {"name": "main"},
        "spec": {"stores": 3, "storage": {"size": "1Gi"}, "throttles": throttles},
    }
    cluster = StoreCluster.model_validate(document)
    return StorePair("main-0", cluster, Layout(directory), StorePorts(1, 2, 3, 4), "http://127.0.0.1:2379")


def sidecar(directory: Path, throttles: dict[str, object]) -> Options:
    """The options that the sidecar of a store parses from its flags."""
    return parse_options(make_pair(directory, throttles).sidecar.command[3:], {})


def test_throttles_are_no_flags(tmp_path: Path) -> None:
    """As on Kubernetes, sidecars read throttles from the metastore, so a change restarts nothing."""
    limited = sidecar(tmp_path, {"bytesPerSecond": "10M", "maxConcurrentMoves": 7})
    assert limited.host == sidecar(tmp_path, {}).host


class Recorded(Child):
    """A fake process that records the calls."""

    def __init__(self, name: str, done: list[tuple[str, str]]) -> None:
        super().__init__(name, "none", (), log=Path("none"))
        self._done = done

    def send(self, what: signal.Signals) -> None:
        self._done.append((self.name, what.name))

    async def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        self._done.append((self.name, f"stop by {how.name}"))
        await asyncio.sleep(0)
        self._done.append((self.name, "ended"))


async def test_kill_leaves_no_time_to_hand_over(tmp_path: Path) -> None:
    """Both processes get SIGKILL before either is awaited, so the sidecar cannot hand over leadership."""
    pair, done = make_pair(tmp_path, {}), list[tuple[str, str]]()
    pair.sidecar, pair.engine = Recorded("sidecar", done), Recorded("engine", done)
    await pair.kill()
    assert done[:2] == [("sidecar", "SIGKILL"), ("engine", "SIGKILL")]
    assert {("sidecar", "ended"), ("engine", "ended")} <= set(done)


async def test_kill_ends_both_processes(tmp_path: Path) -> None:
    """Neither is running afterwards, and neither is restarted."""
    layout = Layout(tmp_path)
    layout.logs.mkdir(parents=True)
    pair = make_pair(tmp_path, {})
    for child in (pair.sidecar, pair.engine):
        child.command = ("sleep", "600")
    await pair.start()
    assert None not in [info.pid for info in pair.infos().values()]
    await pair.kill()
    assert [info.pid for info in pair.infos().values()] == [None, None]
