"""`evenkeel local`: a cluster on this machine, which runs in the background and is identified by its directory."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from rich.progress import Progress, SpinnerColumn, TextColumn

from evenkeel.cli.cluster_session import run_in_session
from evenkeel.cli.local_session import LocalSession, layout_of
from evenkeel.cli.options import Output
from evenkeel.cli.table_commands import cluster_of_store
from evenkeel.cli.target_cluster import LocalTarget
from evenkeel.cli.terminal_output import Listing, console, print_json, print_result
from evenkeel.cli.watch_output import show
from evenkeel.errors import InvalidInputError
from evenkeel.local.cluster_directory import Layout, Running
from evenkeel.local.supervisor import DOWN_ANNOTATION, stores_kept_down
from evenkeel.model.resource_base import API_VERSION
from evenkeel.model.resource_loading import parse
from evenkeel.model.storecluster import StoreCluster
from evenkeel.reconcile.known_stores import read_stores
from evenkeel.reconcile.store_reports import Reports

__all__ = ["down", "kill", "logs", "status", "up"]

_TIMEOUT: Final = 60.0
_POLL_SECONDS: Final = 0.1
_LOG_LINES: Final = 5
_CRASHES: Final = 3
"""Restarts after which `up` gives up on a process."""


def up(
    directory: Path | None,
    *,
    name: str,
    stores: int | None,
    throttle: str,
    rebalancers: Path | None,
    with_parent: bool,
    output: Output,
) -> None:
    """Start the cluster of a directory and wait for its stores; Ctrl-C stops what was started."""
    layout = layout_of(directory)
    if rebalancers is not None:
        layout.link_rebalancers(rebalancers)
    process = _launch(layout, until=os.getppid() if with_parent else None)
    try:
        _until_running(layout, process)
        run_in_session(
            LocalTarget(directory), lambda session: _make_stores(session, name=name, stores=stores, throttle=throttle)
        )
        run_in_session(LocalTarget(directory), lambda session: status(session, output, watch=False))
    except KeyboardInterrupt:
        if process is not None:
            _end(layout, process)
        raise InvalidInputError("interrupted; the local cluster was stopped") from None


def _launch(layout: Layout, *, until: int | None) -> subprocess.Popen[bytes] | None:
    """Start the supervisor, unless one is running."""
    layout.make()
    if layout.is_held():
        return None
    command = [sys.executable, "-m", "evenkeel.local.main", str(layout.root)]
    with layout.log("supervisor").open("ab") as log:
        return subprocess.Popen(
            [*command, str(until)] if until is not None else command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _until_running(layout: Layout, process: subprocess.Popen[bytes] | None) -> None:
    """Wait until a supervisor is running; it may be one that another process started at the same time."""
    deadline = time.monotonic() + _TIMEOUT
    while (running := layout.running()) is None:
        ended = process is not None and process.poll() is not None and not layout.is_held()
        if ended or time.monotonic() > deadline:
            lines = "\n".join(_last_lines(layout.log("supervisor"), _LOG_LINES))
            raise InvalidInputError(f"the local cluster did not start; end of {layout.log('supervisor')}:\n{lines}")
        time.sleep(_POLL_SECONDS / 2)
    if process is not None and process.pid != running.pid:
        process.wait(_TIMEOUT)  # it ends because the other process holds the lock


def _end(layout: Layout, process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_TIMEOUT)


async def _make_stores(session: LocalSession, *, name: str, stores: int | None, throttle: str) -> None:
    """Create the StoreCluster or update its stores and throttle, then wait for the stores."""
    existing = await session.resources.get(StoreCluster, name)
    if existing is None:
        throttles = {"throttles": {"bytesPerSecond": throttle}} if throttle else {}
        spec = {"stores": stores or 3, "storage": {"size": "1Mi"}, **throttles}
        head = {"apiVersion": API_VERSION, "kind": "StoreCluster", "metadata": {"name": name}}
        await session.resources.apply(parse({**head, "spec": spec}, "--name"))
    elif throttle or (stores is not None and existing.spec.stores != stores):

        def edit(document: dict[str, Any]) -> None:
            if stores is not None:
                document["spec"]["stores"] = stores
            if throttle:
                document["spec"].setdefault("throttles", {})["bytesPerSecond"] = throttle

        await session.resources.change(StoreCluster, name, edit)
    await _until_up(session, name)


async def _until_up(session: LocalSession, name: str) -> None:
    screen = console()
    shown = (SpinnerColumn(), TextColumn("{task.description}"))
    with Progress(*shown, console=screen, transient=True, disable=not screen.is_terminal) as progress:
        task = progress.add_task("starting")
        deadline = time.monotonic() + _TIMEOUT
        while missing := await _missing(session, name):
            progress.update(task, description=f"waiting for {', '.join(missing)}")
            _check_crashes(session.layout, missing)
            if time.monotonic() > deadline:
                raise InvalidInputError(
                    f"stores not ready after {_TIMEOUT:g} s: {', '.join(missing)}; "
                    f"see `evenkeel local logs {missing[0]}`"
                )
            await asyncio.sleep(_POLL_SECONDS)


async def _missing(session: LocalSession, name: str) -> list[str]:
    """Return the stores that should be up but are not registered or do not accept clients."""
    cluster = await session.resources.need(StoreCluster, name)
    wanted = {f"{name}-{number}" for number in range(cluster.spec.stores)} - stores_kept_down(cluster)
    keys, ports = session.keys(name), session.layout.ports().stores
    registered = read_stores((await session.metastore.range(keys.stores())).kvs, keys).registered
    answering = [store for store in registered if store in ports and await _answers(ports[store].flight)]
    return sorted(wanted.difference(answering))


async def _answers(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return True


def _check_crashes(layout: Layout, stores: list[str]) -> None:
    running = layout.running()
    for process, info in (running.processes if running is not None else {}).items():
        store, _, kind = process.partition(" ")
        if store in stores and info.restarts >= _CRASHES:
            lines = "\n".join(_last_lines(layout.log(f"{store}.{kind}"), _LOG_LINES))
            raise InvalidInputError(f"{process} keeps crashing; end of {layout.log(f'{store}.{kind}')}:\n{lines}")


async def status(session: LocalSession, output: Output, *, watch: bool) -> None:
    """List the stores and their addresses."""

    async def fetch() -> Listing:
        running = session.layout.running()
        if running is None:
            raise InvalidInputError(
                f"the local cluster in {session.layout.root} has stopped: start it with `evenkeel local up`"
            )
        clusters = await session.resources.all_of(StoreCluster)
        rows = [row for cluster in clusters for row in await _rows(session, cluster, running)]
        data = {"directory": str(session.layout.root), "pid": running.pid, "etcd": running.etcd, "stores": rows}
        head = [key.upper() for key in rows[0]] if rows else []
        return Listing(head, [tuple("-" if cell is None else cell for cell in row.values()) for row in rows], data)

    await show(fetch, output, watch=watch)


async def _rows(session: LocalSession, cluster: StoreCluster, running: Running) -> list[dict[str, Any]]:
    keys, ports, down = session.keys(cluster.metadata.name), session.layout.ports().stores, stores_kept_down(cluster)
    known = read_stores((await session.metastore.range(keys.all_stores())).kvs, keys)
    loads = Reports(keys, (await session.metastore.range(keys.load(""))).kvs).all()
    wanted = {f"{cluster.metadata.name}-{number}" for number in range(cluster.spec.stores)}

    def state(name: str) -> str:
        if name in down:
            return "down"
        if name not in known.registered:
            return "lost" if name in known.states else "starting"
        return "draining" if name in known.states and known.states[name].draining else "running"

    def row(name: str) -> dict[str, Any]:
        load, port, now = loads.get(name), ports.get(name), state(name)
        # The last report of a store outlives it: its replicas are still on its disk, but others lead them now.
        leading = load.leading if load is not None and now in ("running", "draining") else None
        return {
            "store": name,
            "state": now,
            "replicas": load.replicas if load is not None else None,
            "leading": leading,
            "restarts": sum(info.restarts for one, info in running.processes.items() if one.split()[0] == name),
            "flight": f"grpc://127.0.0.1:{port.flight}" if port is not None else "",
            "status": f"http://127.0.0.1:{port.http}/status" if port is not None else "",
        }

    names = sorted(known.names | wanted, key=lambda name: (len(name), name))
    return [row(name) for name in names]


async def kill(session: LocalSession, store: str, output: Output, *, undo: bool, once: bool) -> None:
    """Kill the processes of a store: until `undo`, or `once` with an immediate restart."""
    cluster = await cluster_of_store(session, store)
    if once:
        _kill_once(session.layout, store)
        print_result(f"store {store} killed; it restarts now", output, store=store, result="killed once")
        return

    def edit(document: dict[str, Any]) -> None:
        annotations = document["metadata"].setdefault("annotations", {})
        names = {name for name in annotations.get(DOWN_ANNOTATION, "").split(",") if name}
        annotations[DOWN_ANNOTATION] = ",".join(sorted(names - {store} if undo else names | {store}))

    await session.resources.change(StoreCluster, cluster.metadata.name, edit)
    words = "restarting" if undo else "killed; it stays down until `evenkeel local kill --undo`"
    print_result(f"store {store} {words}", output, store=store, result="comes back" if undo else "is killed")


def _kill_once(layout: Layout, store: str) -> None:
    running = layout.running()
    processes = running.processes.items() if running is not None else ()
    pids = [info.pid for name, info in processes if name.split()[0] == store and info.pid is not None]
    if not pids:
        raise InvalidInputError(f"store {store} has no running process; see `evenkeel local status`")
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def down(directory: Path | None, output: Output, *, wipe: bool) -> None:
    """Stop the cluster; with `wipe`, delete its data."""
    layout = layout_of(directory)
    running = layout.running()
    deadline = time.monotonic() + _TIMEOUT
    stopping = running is None or _terminate(running.pid, within=_TIMEOUT)
    while stopping and layout.is_held():
        stopping = time.monotonic() <= deadline
        time.sleep(_POLL_SECONDS / 2)
    if not stopping:
        raise InvalidInputError(f"the local cluster did not stop within {_TIMEOUT:g} s; see {layout.log('supervisor')}")
    if wipe and not layout.is_made:
        text, result = f"no local cluster in {layout.root}; nothing was deleted", "not there"
    elif wipe:
        layout.wipe()
        text, result = f"stopped; all data in {layout.root} was deleted", "wiped"
    elif running is None:
        text, result = f"no local cluster is running in {layout.root}", "not running"
    else:
        text, result = "stopped; the data is kept for the next `evenkeel local up`", "stopped"
    print_result(text, output, directory=str(layout.root), result=result)


def _terminate(pid: int, *, within: float) -> bool:
    """Send SIGTERM to a process and return whether it ended in time."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        signal.pidfd_send_signal(handle, signal.SIGTERM)
        return bool(select.select([handle], [], [], within)[0])
    except ProcessLookupError:
        return True
    finally:
        os.close(handle)


def logs(directory: Path | None, what: str, output: Output, *, lines: int, follow: bool) -> None:
    """Show the logs of a store's two processes, of the supervisor or of etcd; as JSON, one object per line."""
    layout = layout_of(directory)
    files = _log_files(layout, what)

    def print_line(name: str, line: str) -> None:
        if output is Output.JSON:
            print_json({"process": name, "line": line}, indent=None)
        else:
            print(f"{name}: {line}" if len(files) > 1 else line, flush=True)

    for file in files:
        for line in _last_lines(file, lines):
            print_line(file.stem, line)
    if follow:
        with contextlib.suppress(KeyboardInterrupt):
            _follow(files, print_line)


def _log_files(layout: Layout, what: str) -> list[Path]:
    if what == "etcd":
        return [layout.etcd / "etcd.log"]
    found = sorted(path for path in layout.logs.glob("*.log") if path.stem in (what, f"{what}.raft", f"{what}.store"))
    if not layout.logs.is_dir():
        raise InvalidInputError(
            f"no local cluster was ever started in {layout.root}: start one with `evenkeel local up`"
        )
    if not found:
        existing = sorted({path.stem.partition(".")[0] for path in layout.logs.glob("*.log")})
        allowed = ", ".join([*existing, "etcd"])
        raise InvalidInputError(f"name: got {what!r}; allowed: {allowed}, or one process, such as main-0.raft")
    return found


def _last_lines(file: Path, lines: int) -> list[str]:
    try:
        with file.open(errors="replace") as text:
            return [line.rstrip("\n") for line in deque(text, maxlen=lines)]
    except OSError:
        return []


def _follow(files: list[Path], print_line: Callable[[str, str], None]) -> None:
    with contextlib.ExitStack() as stack:
        opened = {file.stem: stack.enter_context(file.open(errors="replace")) for file in files}
        for text in opened.values():
            text.seek(0, os.SEEK_END)
        while True:
            for name, text in opened.items():
                for line in text:
                    print_line(name, line.rstrip())
            time.sleep(_POLL_SECONDS)
