"""A cluster of processes on loopback: etcd, and for each store a sidecar with the reference state machine.

All processes are ended by process id when the context manager exits. The driver runs the reconcile code in place of the
operator. Tests and the raft benchmarks use it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from evenkeel.driver import drive, read_at_one_revision
from evenkeel.metastore.etcd_binary import find_etcd
from evenkeel.metastore.etcd_metastore import EtcdMetastore
from evenkeel.metastore.etcd_server import EtcdServer, die_with_parent, free_port
from evenkeel.metastore.etcd_settings import EtcdSettings
from evenkeel.metastore.operator_epoch import Epoch, acquire_epoch
from evenkeel.model.views import TableView
from evenkeel.protocol.keys import Keys
from evenkeel.protocol.records import Leader, Retarget, StoreRecord, TableRecord, decode, shape
from evenkeel.reconcile.desired_table import DesiredTable
from evenkeel.reconcile.known_stores import read_stores
from evenkeel.reconcile.store_states import DesiredStores, decide_store_states
from evenkeel.reconcile.table_snapshot import TableSnapshot, read_table
from evenkeel.reconcile.table_steps import Outcome, drop_table, reconcile_table
from tests.reconcile.support import store_cluster

KEYS: Final = Keys(namespace="default", store_cluster="main")
TABLE: Final = "orders.1"
LOOPBACK: Final = "127.0.0.1"
Process = asyncio.subprocess.Process


class StoreProcesses:
    """A store: two processes that can be killed, paused and restarted on the same ports."""

    def __init__(self, name: str, directory: Path, endpoints: tuple[str, ...], flags: tuple[str, ...] = ()) -> None:
        self.name = name
        self.directory = directory
        self.flags = flags
        self.endpoints = endpoints
        self.front, self.http = free_port(), free_port()
        self.peers = free_port()
        self.python = sys.executable
        """The interpreter, and thus the release, of the next processes."""
        self.group: int | None = None
        """The user group of its processes, by which firewall rules match them."""
        self.sidecar: Process | None = None
        self.state_machine: Process | None = None

    async def start(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        await self.start_sidecar()
        await self.start_state_machine()

    async def start_sidecar(self) -> None:
        self.sidecar = await self._launch(
            "sidecar",
            "evenkeel_raft.process.main",
            *("--store", self.name, "--store-cluster", "main"),
            *("--data", str(self.directory / "raft"), "--socket", str(self.socket)),
            *("--listen", f"{LOOPBACK}:{self.peers}", "--http", f"{LOOPBACK}:{self.http}"),
            *("--etcd-endpoints", ",".join(self.endpoints), *self.flags),
        )

    async def start_state_machine(self) -> None:
        self.state_machine = await self._launch(
            "state_machine",
            "evenkeel_reference",
            *("--socket", str(self.socket), "--data", str(self.directory / "state")),
            *("--listen", f"{LOOPBACK}:{self.front}"),
        )

    @property
    def socket(self) -> Path:
        return self.directory / "raft.sock"

    async def _launch(self, what: str, module: str, *arguments: str) -> Process:
        with (self.directory / f"{what}.log").open("ab") as log:
            return await asyncio.create_subprocess_exec(
                *die_with_parent([self.python, "-m", module, *arguments]),
                stdout=log,
                stderr=log,
                process_group=0,
                group=self.group,
            )

    def send(self, what: signal.Signals) -> None:
        """Send a signal to both processes."""
        for process in (self.sidecar, self.state_machine):
            if process is not None and process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, what)

    async def end(self, what: signal.Signals = signal.SIGKILL) -> None:
        """End both processes: with SIGKILL at once, else the state machine first, like Kubernetes."""
        if what is signal.SIGKILL:
            self.send(what)
        for process in (self.state_machine, self.sidecar):
            await end(process, what)
        self.state_machine = self.sidecar = None

    async def wipe(self) -> None:
        """Kill the processes and delete the disk."""
        await self.end()
        shutil.rmtree(self.directory)

    def read(self, path: str) -> bytes:
        """Return the sidecar's HTTP response on a path."""
        with urllib.request.urlopen(f"http://{LOOPBACK}:{self.http}{path}", timeout=5) as answer:
            return bytes(answer.read())

    async def status(self) -> dict[str, Any] | None:
        """Return the sidecar's status, or None if it does not answer."""
        try:
            text = await asyncio.to_thread(self.read, "/status")
        except OSError:
            return None
        return msgspec.json.decode(text, type=dict[str, Any])

    def log(self) -> str:
        """Return the end of its logs."""
        logs = (self.directory / f"{what}.log" for what in ("sidecar", "state_machine"))
        return "\n".join(log.read_text(errors="replace")[-4000:] for log in logs if log.exists())


async def end(process: Process | None, what: signal.Signals) -> None:
    """Send a signal to a process and wait until it ends; kill it if it does not end in time."""
    if process is None or process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        # `Process.send_signal` polls first, which would take the exit status from the waiting task.
        os.kill(process.pid, what)
        os.kill(process.pid, signal.SIGCONT)
    try:
        async with asyncio.timeout(30):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


class ProcessCluster:
    """Etcd and stores; an async context manager that stops all processes."""

    def __init__(
        self,
        directory: Path,
        *,
        stores: int = 3,
        partitions: int = 1,
        flags: tuple[str, ...] = (),
        own_groups: bool = False,
    ) -> None:
        """`own_groups`: each store runs as its own user group, whose id is its port."""
        self.directory = directory
        self.partitions = partitions
        self.flags = flags
        self.etcd = EtcdServer(directory / "etcd", binary=find_etcd())
        self.stores: dict[str, StoreProcesses] = {}
        self._draining: list[str] = []
        self._count = stores
        self._own_groups = own_groups
        self.metastore: EtcdMetastore
        self.epoch: Epoch

    async def __aenter__(self) -> Self:
        try:
            await self.etcd.start()
            self.metastore = EtcdMetastore(EtcdSettings(endpoints=(self.etcd.endpoint,)))
            self.epoch = await acquire_epoch(self.metastore, KEYS.epoch, "tests")
            await asyncio.gather(*(self.add(f"s{number}") for number in range(1, self._count + 1)))
            await self.until_registered(self._count)
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop all processes."""
        await asyncio.gather(*(store.end() for store in self.stores.values()))
        if hasattr(self, "metastore"):
            await self.metastore.close()
        await self.etcd.kill()

    async def replace_etcd(self) -> None:
        """Replace etcd by an empty one."""
        await self.etcd.kill()
        shutil.rmtree(self.directory / "etcd")
        await self.etcd.start()

    async def add(self, name: str, *, flags: tuple[str, ...] = ()) -> StoreProcesses:
        """Start another store."""
        store = StoreProcesses(name, self.directory / name, (self.etcd.endpoint,), (*self.flags, *flags))
        if self._own_groups:
            store.group = store.peers
        self.stores[name] = store
        await store.start()
        return store

    # The operator

    async def reconcile(
        self, replicas: int, *, voters: int | None = None, retarget: Retarget = Retarget.ADJUST
    ) -> Outcome:
        """Reconcile the table with a number of replicas, like the operator."""
        size = voters or (replicas if replicas % 2 else replicas - 1)
        desired = DesiredTable(
            record=TableRecord(partitions=self.partitions, replicas=replicas, consensus_size=size, retarget=retarget),
            view=TableView(name="orders", partitions=self.partitions, replicas=replicas, consensus_size=size),
        )
        requests = reconcile_table(desired, keys=KEYS, table=TABLE, epoch=self.epoch.compare)
        return await drive(requests, metastore=self.metastore, epoch=self.epoch)

    async def drop(self) -> None:
        """Drop the table and wait until no store has data of it."""
        await self.until(self._dropped, within=60)

    async def _dropped(self) -> bool:
        requests = drop_table(keys=KEYS, table=TABLE, epoch=self.epoch.compare)
        await drive(requests, metastore=self.metastore, epoch=self.epoch)
        return await self.metastore.get(KEYS.tombstone(TABLE)) is None

    async def drain(self, name: str) -> None:
        """Drain a store in addition to those before it, like a user and the operator."""
        self._draining.append(name)
        while not await self._decide_store_states():
            pass  # a store registered or left since it was read; retry like the operator

    async def _decide_store_states(self) -> bool:
        found = await self.metastore.range(KEYS.all_stores())
        desired = DesiredStores(cluster=store_cluster(drain=",".join(self._draining)))
        known = read_stores(found.kvs, KEYS)
        txns = decide_store_states(
            known, desired, keys=KEYS, now=time.time(), restart_delays=False, epoch=self.epoch.compare
        )
        return all([(await self.metastore.txn(txn)).succeeded for txn in list(txns)])

    async def volume(self, store: str) -> str:
        """Return the volume of a registered store; empty if it is not registered."""
        kv = await self.metastore.get(KEYS.store(store))
        return decode(StoreRecord, kv.value, key=kv.key).volume if kv is not None else ""

    async def leader(self, partition: int = 0) -> str:
        """Return the reported leader of a partition; empty if there is none."""
        kv = await self.metastore.get(KEYS.leader(TABLE, partition))
        return decode(Leader, kv.value, key=kv.key).store if kv is not None else ""

    async def retire(self, name: str) -> None:
        """Stop a store with SIGTERM."""
        store = self.stores.pop(name)
        await store.end(signal.SIGTERM)

    # Waiting

    async def until(self, condition: Callable[[], Any], *, within: float = 60.0) -> None:
        """Poll until the condition is true."""
        try:
            async with asyncio.timeout(within):
                while not await condition():  # noqa: ASYNC110 - of another process
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"{condition} did not come true in {within} s\n{await self.describe()}") from None

    async def until_ready(self, store: StoreProcesses) -> None:
        async def ready() -> bool:
            status = await store.status()
            return status is not None and status["ready"]

        await self.until(ready)

    async def until_registered(self, count: int) -> None:
        async def registered() -> bool:
            return len((await self.metastore.range(KEYS.stores())).kvs) >= count

        await self.until(registered)

    async def snapshot(self) -> TableSnapshot:
        """Read the keys of the table."""
        found = await read_at_one_revision(self.metastore, read_table(KEYS, TABLE).prefixes)
        return TableSnapshot(KEYS, TABLE, found)

    async def settled(self) -> bool:
        """Whether every partition has reached the newest plan and nothing is in progress."""
        snapshot = await self.snapshot()
        if snapshot.plan is None:
            return False
        for partition in range(self.partitions):
            view = snapshot.partition(partition)
            if view.stable is None or view.pending or view.planned or view.lock or view.trigger != snapshot.plan.n:
                return False
            if shape(view.stable.peers) != shape(snapshot.plan.target(partition)):
                return False
        return True

    async def until_settled(self, *, within: float = 90.0) -> None:
        await self.until(self.settled, within=within)

    async def leftovers(self) -> list[tuple[str, int]]:
        """Return the running replicas that are not in stable."""
        snapshot = await self.snapshot()
        wanted = {
            (peer.store, partition)
            for partition in range(self.partitions)
            if (stable := snapshot.partition(partition).stable) is not None
            for peer in stable.peers
        }
        found: list[tuple[str, int]] = []
        for store in self.stores.values():
            status = await store.status()
            for replica in (status or {}).get("replicas", []):
                place = (store.name, replica["partition"])
                found += [place] if place not in wanted else []
        return found

    async def describe(self) -> str:
        """Describe etcd, the sidecars and the logs, for the message of a failed test."""
        logs = [f"== {name}\n{store.log()}" for name, store in self.stores.items()]
        with contextlib.suppress(Exception):
            snapshot = await self.snapshot()
            lines = [f"plan {snapshot.plan.n if snapshot.plan else None}"]
            lines += [f"{partition}: {snapshot.partition(partition)}" for partition in range(min(4, self.partitions))]
            for store in self.stores.values():
                lines.append(f"{store.name}: {await store.status()}")
            return "\n".join((*lines, *logs))
        return "\n".join(("(etcd does not answer)", *logs))
