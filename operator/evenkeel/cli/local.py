"""`evenkeel local`: a whole cluster on this machine, started in the background and found again by its directory."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rich.progress import Progress, SpinnerColumn, TextColumn

from evenkeel.cli.printing import Output, console, print_json, print_table
from evenkeel.cli.session import Session
from evenkeel.errors import InvalidInputError
from evenkeel.local.layout import Layout
from evenkeel.local.supervisor import DOWN_ANNOTATION
from evenkeel.metastore.server import die_with_parent
from evenkeel.model.loading import load_yaml
from evenkeel.model.storecluster import StoreCluster
from evenkeel.reconcile.stores import read_stores

__all__ = ["down", "kill", "launch", "make_stores", "status"]

_PATIENCE = 60.0


def launch(directory: Path, *, with_parent: bool) -> None:
    """Start the cluster's process where none runs, and wait until it can be found."""
    layout = Layout(directory)
    layout.make()
    if layout.running() is not None:
        return
    command = [sys.executable, "-m", "evenkeel.local.main", str(layout.root)]
    log_path = layout.logs / "supervisor.log"
    with log_path.open("ab") as log:
        process = subprocess.Popen(
            die_with_parent(command) if with_parent else command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    until = time.monotonic() + _PATIENCE
    while layout.running() is None:
        if process.poll() is not None or time.monotonic() > until:
            said = log_path.read_text(errors="replace").strip().splitlines()[-5:]
            raise InvalidInputError(f"the local cluster did not start; {log_path} says:\n" + "\n".join(said))
        time.sleep(0.05)


async def make_stores(session: Session, *, name: str, stores: int | None) -> None:
    """Make the StoreCluster, or give it another number of stores; then wait for them."""
    existing = await session.resources.get(StoreCluster, name)
    if existing is None:
        text = (
            f"apiVersion: evenkeel.dev/v1alpha1\nkind: StoreCluster\nmetadata: {{name: {name}}}\n"
            f"spec: {{stores: {stores or 3}, storage: {{size: 1Gi}}}}\n"
        )
        await session.resources.apply(load_yaml(text)[0])
    elif stores is not None and existing.spec.stores != stores:
        await session.resources.change(StoreCluster, name, lambda document: document["spec"].update(stores=stores))
    await _until_up(session, name)


async def _until_up(session: Session, name: str) -> None:
    keys = session.keys(name)
    with Progress(SpinnerColumn(), TextColumn("{task.description}"), console=console(), transient=True) as progress:
        task = progress.add_task("starting")
        until = time.monotonic() + _PATIENCE
        while True:
            cluster = await session.resources.get(StoreCluster, name)
            assert cluster is not None
            up = len((await session.metastore.range(keys.stores())).kvs)
            progress.update(task, description=f"{up} of {cluster.spec.stores} stores are up")
            if up >= cluster.spec.stores:
                return
            if time.monotonic() > until:
                raise InvalidInputError(f"{up} of {cluster.spec.stores} stores came up; see {session.layout.logs}")
            await asyncio.sleep(0.1)


async def status(session: Session, output: Output) -> None:
    """Every store, and where to find it."""
    rows: list[dict[str, Any]] = []
    ports = session.layout.ports()
    for cluster in await session.resources.all_of(StoreCluster):
        keys = session.keys(cluster.metadata.name)
        found = await session.metastore.range(keys.all_stores())
        known = read_stores(found.kvs, keys)
        for name in sorted(known.names()):
            state = known.states.get(name)
            draining = state is not None and state.draining
            rows.append(
                {
                    "store": name,
                    "state": "draining" if draining else "running" if name in known.registered else "lost",
                    "flight": f"grpc://127.0.0.1:{ports[name].flight}" if name in ports else "",
                    "status": f"http://127.0.0.1:{ports[name].http}/status" if name in ports else "",
                }
            )
    if output is Output.JSON:
        running = session.layout.running()
        assert running is not None
        print_json({"directory": str(session.layout.root), "pid": running.pid, "etcd": running.etcd, "stores": rows})
        return
    print_table(("STORE", "STATE", "FLIGHT", "STATUS"), [tuple(row.values()) for row in rows])


async def kill(session: Session, store: str, *, undo: bool) -> None:
    """Kill a store's processes and keep them down; or let them come back."""
    cluster = store.rpartition("-")[0]
    known = await session.resources.get(StoreCluster, cluster)
    if known is None or store not in {f"{cluster}-{number}" for number in range(known.spec.stores)}:
        raise InvalidInputError(f"store: got {store!r}; allowed: one of those that `evenkeel local status` lists")

    def edit(document: dict[str, Any]) -> None:
        annotations = document["metadata"].setdefault("annotations", {})
        names = {name for name in annotations.get(DOWN_ANNOTATION, "").split(",") if name}
        annotations[DOWN_ANNOTATION] = ",".join(sorted(names - {store} if undo else names | {store}))

    await session.resources.change(StoreCluster, cluster, edit)
    console().print(f"store {store} {'comes back' if undo else 'is killed and stays down'}")


def down(directory: Path) -> None:
    """Stop the cluster; its data stays."""
    layout = Layout(directory)
    running = layout.running()
    if running is None:
        console().print(f"no local cluster runs in {layout.root}")
        return
    os.kill(running.pid, signal.SIGTERM)
    until = time.monotonic() + _PATIENCE
    while layout.running() is not None:
        if time.monotonic() > until:
            raise InvalidInputError(f"process {running.pid} does not stop; see {layout.logs}")
        time.sleep(0.05)
    console().print("stopped; the data stays, and `evenkeel local up` goes on with it")
