"""A local cluster of real etcd, sidecars and stores, controlled only by the command line.

The first tests share a cluster of three stores, each with a table of its own; the others need a store or none.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyarrow import flight

from evenkeel.cli import local_commands
from evenkeel.client import Client
from evenkeel.local.cluster_directory import Layout
from evenkeel_raft.host.host_settings import HostSettings
from tests.repository.tree import ROOT

COMMAND = Path(sys.executable).parent / "evenkeel"
TABLE = """\
apiVersion: evenkeel.dev/v1alpha1
kind: Table
metadata: {{name: {name}}}
spec:
  storeCluster: main
  partitions: 4
  replicas: {replicas}
  schema:
    columns:
      - {{name: id, type: int64, nullable: false}}
      - {{name: word, type: string}}
    primaryKey: [id]
  {more}
"""
ROWS = [{"id": number, "word": f"word {number}"} for number in range(100)]


class Here:
    """The directory of a cluster, and the command line for it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.layout = Layout(root)

    def run(self, *arguments: str, code: int = 0, prefix: tuple[str, ...] = (), given: str = "") -> str:
        """Run a command; return its output, or its error if it has to fail."""
        done = subprocess.run(
            [*prefix, COMMAND, *arguments],
            input=given,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "EVENKEEL_LOCAL": str(self.root)},
            timeout=180,
        )
        assert done.returncode == code, f"{arguments}: {done.stdout}{done.stderr}\n{self.logs()}"
        return done.stderr if code else done.stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self.run(*arguments, "-o", "json"))

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a command without waiting for it."""
        environment = {**os.environ, "EVENKEEL_LOCAL": str(self.root)}
        return subprocess.Popen(
            [COMMAND, *arguments], env=environment, start_new_session=True, stdout=subprocess.DEVNULL
        )

    def make(self, name: str, *, replicas: int = 3, more: str = "") -> None:
        """Create a table with a hundred rows."""
        text = TABLE.format(name=name, replicas=replicas, more=more)
        self.run("apply", "-f", "-", given=text)
        self.run("wait", f"table/{name}", "--timeout", "90")
        with self.client() as client:
            client.table(name).upsert(ROWS)

    def client(self) -> Client:
        return Client([store["flight"] for store in self.json("local", "status")["stores"] if store["flight"]])

    def kept(self) -> set[str]:
        """Return the deleted tables whose data is kept, including those of other tests."""
        return {one["table"] for one in self.json("dropped")}

    def count(self, name: str) -> int:
        [row] = self.json("sql", f"select count(*) n from {name}")
        return int(row["n"])

    def processes(self) -> list[int]:
        """Return all processes whose command line has the directory."""
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdecimal() and os.fsencode(self.root) in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
        return found

    def logs(self) -> str:
        files = sorted(self.layout.logs.glob("*.log"))
        return "\n".join(f"== {file.name}\n{file.read_text(errors='replace')[-1500:]}" for file in files)

    def close(self) -> None:
        """Stop all processes and remove all files."""
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.layout.sockets, ignore_errors=True)


def until(condition: Callable[[], Any], *, within: float = 60.0) -> None:
    """Poll until the condition is true."""
    end = time.monotonic() + within
    while not condition():
        assert time.monotonic() < end, f"it did not come about in {within:g} s"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Here]:
    """A cluster of three stores in a directory with spaces whose path is too long for sockets."""
    found = Here(tmp_path_factory.mktemp("c").joinpath("a b", *["a rather long name"] * 6))
    assert len(str(found.root)) > 120
    try:
        found.run("local", "up", "--stores", "3")
        yield found
    finally:
        found.close()


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Here]:
    """A directory for a cluster of one test."""
    found = Here(tmp_path / "c")
    yield found
    found.close()


# A cluster of three


def test_rows_are_written_and_read(here: Here) -> None:
    """A table from the same YAML as on Kubernetes can be written, queried by SQL, listed and verified."""
    here.make("plain")
    assert here.count("plain") == 100
    shown = here.json("partitions", "plain")
    assert [len(entry["stable"]) for entry in shown] == [3, 3, 3, 3]
    assert here.json("get", "table/plain")["status"]["plan"] == 1
    assert "plain" in here.run("get", "tables")
    assert here.run("get", "plans").count("Done") >= 1
    assert "table plain: all replicas are identical" in here.run("verify", "plain")


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("partitions na", ["named"]),
        ("drain main-", ["main-0", "main-1", "main-2"]),
        ("local kill main-2", ["main-2"]),
        ("scale table/na", ["table/named"]),
        ("get storec", ["storeclusters", "storecluster/main"]),
    ],
)
def test_shells_complete_names(here: Here, typed: str, found: list[str]) -> None:
    """Names of tables and stores of the cluster are completed."""
    if typed == "partitions na":
        here.make("named", replicas=1)
    words = f"evenkeel {typed}"
    asked = {"_EVENKEEL_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    environment = {**os.environ, **asked, "EVENKEEL_LOCAL": str(here.root)}
    done = subprocess.run([COMMAND], env=environment, capture_output=True, text=True, check=True)
    assert (done.stdout.split(), done.stderr) == (found, "")


def test_partitions_keep_log_time(here: Here) -> None:
    """Every replica has a log time from the cluster version that allows it, also after a restart."""
    here.make("timed")

    def times() -> list[int]:
        """Return the log times of all replicas, or nothing until all have applied everything."""
        found = []
        for store in here.json("local", "status")["stores"]:
            with contextlib.closing(flight.connect(store["flight"])) as client:
                [answer] = client.do_action(flight.Action("status", json.dumps({"table": "timed"}).encode()))
                found += json.loads(answer.body.to_pybytes())["groups"]
        latest = {
            group["partition"]: max(g["applied"] for g in found if g["partition"] == group["partition"])
            for group in found
        }
        whole = len(found) == 12 and all(group["applied"] == latest[group["partition"]] for group in found)
        return [group.get("log_time", 0) for group in sorted(found, key=lambda g: g["partition"])] if whole else []

    until(lambda: times() and all(times()))
    before = times()
    assert len(set(before)) <= 4, "replicas of a partition agree"
    now = time.time() * 1000
    assert all(abs(now - at) < 600_000 for at in before), "it begins with the time of day"
    here.run("local", "down")
    here.run("local", "up")
    here.run("wait", "table/timed", "--timeout", "90")
    with here.client() as client:
        client.table("timed").upsert(ROWS)
    until(lambda: times() and all(after >= at for after, at in zip(times(), before, strict=True)))


def test_restart_with_data(here: Here) -> None:
    """`down` stops every process; `up` restarts the cluster on the same ports with every row."""
    here.make("kept")
    before = here.json("local", "status")
    assert "the data is kept" in here.run("local", "down")
    assert here.processes() == []
    here.run("local", "up")
    after = here.json("local", "status")
    assert after["etcd"] == before["etcd"]
    assert [store["flight"] for store in after["stores"]] == [store["flight"] for store in before["stores"]]
    here.run("wait", "table/kept", "--timeout", "90")
    assert here.count("kept") == 100


def test_a_killed_store_stays_down_until_undo(here: Here) -> None:
    """Reads and writes continue without it; with --once it is restarted at once."""
    here.make("tough")
    here.run("local", "kill", "main-1")
    until(lambda: here.json("local", "status")["stores"][1]["state"] == "down")
    assert here.json("local", "status")["stores"][1]["leading"] is None, "others do"
    here.run("wait", "table/tough", "--timeout", "90")
    with here.client() as client:
        client.table("tough").upsert([{"id": 1000, "word": "new"}])
    assert here.count("tough") == 101
    here.run("local", "kill", "main-1", "--undo")
    until(lambda: here.json("local", "status")["stores"][1]["state"] == "running")
    here.run("local", "kill", "main-1", "--once")
    until(lambda: here.json("local", "status")["stores"][1]["restarts"] >= 1)
    until(lambda: not here.json("get", "sc/main")["status"].get("lost"), within=90)


def test_kill_hands_over_no_leadership(here: Here) -> None:
    """Writers wait until the other replicas have elected a leader after an election timeout."""
    here.make("cut")
    until(lambda: here.json("partitions", "cut")[0]["leader"])
    victim = here.json("partitions", "cut")[0]["leader"]
    acknowledged, stopped = [time.monotonic()], threading.Event()

    def write() -> None:
        with here.client() as client:
            table = client.table("cut")
            while not stopped.is_set():
                table.upsert(ROWS)
                acknowledged.append(time.monotonic())

    writing = threading.Thread(target=write)
    writing.start()
    try:
        until(lambda: len(acknowledged) > 20)
        began = time.monotonic()
        here.run("local", "kill", victim)
        until(lambda: here.json("local", "status")["stores"][int(victim[-1])]["state"] == "down")
        written = len(acknowledged)
        until(lambda: len(acknowledged) > written + 20)
    finally:
        stopped.set()
        writing.join()
        here.run("local", "kill", victim, "--undo")
    gaps = [after - before for before, after in itertools.pairwise(acknowledged) if after > began]
    settings = HostSettings()
    heartbeat = settings.tick_seconds * settings.raft.heartbeat_ticks
    assert max(gaps) >= settings.election_seconds - heartbeat, "leadership was handed over"
    until(lambda: not here.json("get", "sc/main")["status"].get("lost"), within=90)


def test_scaling_out_and_in_again(here: Here) -> None:
    """A fourth store gets its share; when it is removed, it is drained, stopped and its data deleted."""
    here.make("wide")
    here.run("local", "up", "--stores", "4")
    until(lambda: "main-3" in here.run("partitions", "wide"))
    here.run("wait", "table/wide", "--for", "Balanced", "--timeout", "120")
    here.run("scale", "storecluster/main", "--replicas", "3")
    until(lambda: not here.layout.store("main-3").exists(), within=120)
    until(lambda: len(here.json("local", "status")["stores"]) == 3)
    assert here.count("wide") == 100


def test_changed_throttles_need_no_restart(here: Here) -> None:
    """Running sidecars apply new throttles without a restart."""
    here.make("steady")
    before = processes(here)
    cluster = here.json("get", "sc/main")
    cluster["spec"]["throttles"] = {"bytesPerSecond": "50Mi", "maxConcurrentMoves": 3}
    cluster["spec"]["failureHandling"] = {"stepDownWhenStalled": True, "stalledAfter": "5s"}
    del cluster["status"]
    here.run("apply", "-f", "-", given=json.dumps(cluster))
    expected = (float(50 << 20), 3.0)
    until(lambda: all(throttles(here, f"main-{number}") == expected for number in range(3)))
    assert processes(here) == before


def processes(here: Here) -> dict[str, int | None]:
    """Return process ids by name."""
    running = here.layout.running()
    assert running is not None
    return {name: info.pid for name, info in running.processes.items()}


def throttles(here: Here, store: str) -> tuple[float, float]:
    """Return the throttles in the metrics of a sidecar: bytes per second, and snapshots at once."""
    port = here.layout.ports().stores[store].http
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = dict(line.rsplit(" ", 1) for line in answer.read().decode().splitlines() if line[0] != "#")
    return tuple(float(lines[f"evenkeel_raft_{name}"]) for name in ("bytes_per_second", "snapshots_at_once"))  # type: ignore[return-value]


def test_examples(here: Here) -> None:
    """The examples for three stores work, including user-defined rebalancers."""
    examples = ROOT / "examples"
    here.run("local", "up", "--rebalancers", str(examples / "rebalancers"))
    for name, table in (("user-defined", "sessions"), ("lock-manager", "locks"), ("customized", "ledger")):
        here.run("apply", "-f", str(examples / f"{name}.yaml"))
        here.run("wait", f"table/{table}", "--timeout", "90")
    leaders = [entry["leader"] for entry in here.json("partitions", "locks")]
    assert leaders == [f"main-{number % 3}" for number in range(6)]
    until(lambda: here.json("partitions", "ledger")[0]["leader"] == "main-1")
    for table in ("sessions", "locks", "ledger"):
        here.run("delete", f"table/{table}")


def test_plans_approvals_and_leaders(here: Here) -> None:
    """A plan waits for manual approval, leadership is handed over, and `explain` shows the reasons."""
    here.make("careful", replicas=2, more="approval: Manual")
    assert "would have 4 moves in 4 partitions" in here.run("plan", "careful", "--replicas", "3")
    here.run("scale", "table/careful", "--replicas", "3")
    until(lambda: here.json("get", "table/careful")["status"]["plan"] == 2)
    until(lambda: "AwaitingApproval" in here.run("get", "plan/careful-2"))
    assert "approved: 4 moves" in here.run("approve", "plan/careful-2")
    here.run("wait", "table/careful", "--for", "Balanced", "--timeout", "120")
    assert "replicas 2 -> 3" in here.run("explain", "careful", "0")
    [first, *_] = here.json("partitions", "careful")
    wanted = next(peer["store"] for peer in first["stable"] if peer["store"] != first["leader"])
    here.run("hand-over", "careful", "0", wanted)
    until(lambda: here.json("partitions", "careful")[0]["leader"] == wanted, within=120)
    assert here.count("careful") == 100


def test_tables_and_store_clusters_are_deleted(here: Here) -> None:
    """A dropped table leaves nothing on any store; a deleted StoreCluster leaves no process."""
    here.make("short", more="undeleteFor: 0s")
    here.run("delete", "table/short")
    assert "allowed: one that exists" in here.run("get", "table/short", code=1)
    here.make("long")
    assert "its data is kept for 24h" in here.run("delete", "table/long")
    until(lambda: "long" in here.kept())
    assert "undeleted" in here.run("undelete", "long")
    here.run("wait", "table/long", "--timeout", "90")
    assert here.count("long") == 100
    here.run("delete", "table/long")
    until(lambda: "long" in here.kept())
    assert "purged" in here.run("purge", "table/long")
    assert "long" not in here.kept()
    here.run("local", "up", "--name", "other", "--stores", "1")
    assert here.layout.store("other-0").exists()
    here.run("delete", "storecluster/other")
    assert not here.layout.store("other-0").exists()
    assert not any("other-0" in name for name in here.layout.running().processes)  # type: ignore[union-attr]


def test_logs(here: Here) -> None:
    """Logs of a store, one process, etcd and the supervisor; an unknown name is refused with the allowed names."""
    both = here.run("local", "logs", "main-0")
    assert "main-0.raft: " in both
    assert "main-0.store: " in both
    assert len(here.run("local", "logs", "main-0.raft", "-n", "1").splitlines()) == 1
    here.run("local", "logs", "etcd")
    here.run("local", "logs", "supervisor")
    assert "got 'main-9'; allowed: main-0, main-1" in here.run("local", "logs", "main-9", code=1)


def test_etcd_is_restarted(here: Here) -> None:
    """A killed etcd is restarted on the same port with its data."""
    running = here.layout.running()
    assert running is not None
    pid = running.processes["etcd"].pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)

    def another() -> bool:
        now = here.layout.running()
        return now is not None and now.processes["etcd"].pid not in (pid, None)

    until(another)
    until(lambda: here.json("local", "status")["stores"])


# The life cycle of the supervisor


def test_nothing_is_left_of_a_supervisor_that_was_killed(alone: Here) -> None:
    """Its processes end with it; a new supervisor waits for them and has all data."""
    alone.run("local", "up", "--stores", "1")
    alone.make("kept", replicas=1)
    running = alone.layout.running()
    assert running is not None
    os.kill(running.pid, signal.SIGKILL)
    assert "is not running" in alone.run("get", "tables", code=1)
    alone.run("local", "up")
    alone.run("wait", "table/kept", "--timeout", "90")
    assert alone.count("kept") == 100
    running = alone.layout.running()
    assert running is not None
    os.kill(running.pid, signal.SIGKILL)
    until(lambda: alone.processes() == [], within=30)
    assert "no local cluster is running" in alone.run("local", "down")


def test_concurrent_starts(alone: Here) -> None:
    """Both commands succeed; one supervisor runs the cluster and the other has ended."""
    alone.layout.make()
    processes = [local_commands._launch(alone.layout, until=None) for _ in range(2)]
    assert None not in processes, "neither has had the time to take the lock"
    for process in processes:
        local_commands._until_running(alone.layout, process)
    [winner] = [process for process in processes if process is not None and process.poll() is None]
    running = alone.layout.running()
    assert running is not None
    assert running.pid == winner.pid
    alone.run("local", "down", "--wipe")
    assert winner.wait(60) == 0
    assert not alone.root.exists()


@pytest.mark.parametrize("when", ["etcd", "stores"])
def test_interrupted_start(alone: Here, when: str) -> None:
    """Ctrl-C during `up` stops what was started."""
    starting = alone.start("local", "up", "--stores", "2")
    if when == "etcd":
        until(alone.layout.etcd.exists)
    else:
        until(lambda: alone.layout.running() is not None)
    starting.send_signal(signal.SIGINT)
    assert starting.wait(60) == 1
    until(lambda: alone.processes() == [], within=30)
    assert not alone.layout.is_held()


def test_the_cluster_ends_with_its_parent(alone: Here) -> None:
    """With --with-parent the cluster stops when the parent ends, even if it is killed."""
    script = f"'{COMMAND}' local up --stores 1 --with-parent --dir '{alone.root}' && echo up && read -r line"
    with subprocess.Popen(["bash", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        while parent.stdout.readline() != "up\n":
            assert parent.poll() is None
        assert alone.layout.is_held()
        parent.kill()
    until(lambda: alone.processes() == [], within=30)


def test_a_host_whose_name_does_not_resolve(alone: Here) -> None:
    """The cluster uses only loopback and never resolves the host name."""
    unshare = ("unshare", "--uts", "sh", "-c", 'hostname no-such-host.invalid && exec "$0" "$@"')
    if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("host names can be changed by root alone here")
    alone.run("local", "up", "--stores", "1", prefix=unshare)
    alone.make("plain", replicas=1)
    assert alone.count("plain") == 100


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_port_that_another_process_uses(alone: Here) -> None:
    """The cluster starts on other ports."""
    alone.run("local", "up", "--stores", "1")
    before = alone.layout.ports()
    alone.run("local", "down")
    assert before.etcd is not None
    taken = (before.etcd[0], before.stores["main-0"].flight)
    servers = [
        subprocess.Popen([sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(port)]) for port in taken
    ]
    try:
        for port in taken:
            until(partial(_listens, port))
        alone.run("local", "up")
        after = alone.layout.ports()
        assert after.etcd is not None
        assert {after.etcd[0], after.stores["main-0"].flight}.isdisjoint(taken)
    finally:
        for server in servers:
            server.kill()
            server.wait()


def test_a_failed_start_shows_the_log(alone: Here) -> None:
    """The error has the end of the supervisor's log and no traceback."""
    alone.layout.make()
    alone.layout.etcd.write_text("in the way")
    error = alone.run("local", "up", code=1)
    assert "the local cluster did not start" in error
    assert "did not start; end of" in error
    assert "supervisor.log" in error
    assert alone.processes() == []
