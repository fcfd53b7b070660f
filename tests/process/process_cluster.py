"""A whole cluster as processes on loopback: etcd, and for each store a sidecar with the reference state machine.

Everything is ended by process id when the cluster is left, however that happens. The operator's part is played by the
driver on the same reconcile code as everywhere. Tests use it, and the benches of raft.
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
    """One store: two processes that can be killed, paused and started again on the same ports."""

    def __init__(self, name: str, directory: Path, endpoints: tuple[str, ...], flags: tuple[str, ...] = ()) -> None:
        self.name = name
        self.directory = directory
        self.flags = flags
        self.endpoints = endpoints
        self.front, self.http = free_port(), free_port()
        self.peers = free_port()
        self.python = sys.executable
        """The interpreter, and with it the release, of its next processes."""
        self.group: int | None = None
        """The group of users its processes run as, where a firewall is to know them by it."""
        self.sidecar: Process | None = None
        self.machine: Process | None = None

    async def start(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        await self.start_sidecar()
        await self.start_machine()

    async def start_sidecar(self) -> None:
        self.sidecar = await self._launch(
            "sidecar",
            "evenkeel_raft.process.main",
            *("--store", self.name, "--store-cluster", "main"),
            *("--data", str(self.directory / "raft"), "--socket", str(self.socket)),
            *("--listen", f"{LOOPBACK}:{self.peers}", "--http", f"{LOOPBACK}:{self.http}"),
            *("--etcd-endpoints", ",".join(self.endpoints), *self.flags),
        )

    async def start_machine(self) -> None:
        self.machine = await self._launch(
            "machine",
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
        for process in (self.sidecar, self.machine):
            if process is not None and process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, what)

    async def end(self, what: signal.Signals = signal.SIGKILL) -> None:
        """End both processes: killed at once, as by a power cut; else the state machine first, as Kubernetes does."""
        if what is signal.SIGKILL:
            self.send(what)
        for process in (self.machine, self.sidecar):
            await end(process, what)
        self.machine = self.sidecar = None

    async def wipe(self) -> None:
        """Lose processes and disk."""
        await self.end()
        shutil.rmtree(self.directory)

    def read(self, path: str) -> bytes:
        """What the sidecar serves on a path."""
        with urllib.request.urlopen(f"http://{LOOPBACK}:{self.http}{path}", timeout=5) as answer:
            return bytes(answer.read())

    async def status(self) -> dict[str, Any] | None:
        """The sidecar's status; None where it does not answer."""
        try:
            text = await asyncio.to_thread(self.read, "/status")
        except OSError:
            return None
        return msgspec.json.decode(text, type=dict[str, Any])

    def log(self) -> str:
        """The last of what its processes said."""
        logs = (self.directory / f"{what}.log" for what in ("sidecar", "machine"))
        return "\n".join(log.read_text(errors="replace")[-4000:] for log in logs if log.exists())


async def end(process: Process | None, what: signal.Signals) -> None:
    """End a process and wait for it; whoever does not listen is killed."""
    if process is None or process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        # Not by the process object, which would look whether it is gone, and take its end from whoever waits for it.
        os.kill(process.pid, what)
        os.kill(process.pid, signal.SIGCONT)
    try:
        async with asyncio.timeout(30):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


class ProcessCluster:
    """Etcd and stores; an async context manager that leaves nothing behind."""

    def __init__(
        self,
        directory: Path,
        *,
        stores: int = 3,
        partitions: int = 1,
        flags: tuple[str, ...] = (),
        own_groups: bool = False,
    ) -> None:
        """`own_groups`: each store runs as a group of users of its own, the one with the number of its port."""
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
        """End everything that was started."""
        await asyncio.gather(*(store.end() for store in self.stores.values()))
        if hasattr(self, "metastore"):
            await self.metastore.close()
        await self.etcd.kill()

    async def replace_etcd(self) -> None:
        """Put an empty etcd in the place of the one that was there."""
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

    # The operator's part

    async def reconcile(
        self, replicas: int, *, voters: int | None = None, retarget: Retarget = Retarget.ADJUST
    ) -> Outcome:
        """Bring the table towards so many replicas, as the operator would."""
        size = voters or (replicas if replicas % 2 else replicas - 1)
        desired = DesiredTable(
            record=TableRecord(partitions=self.partitions, replicas=replicas, consensus_size=size, retarget=retarget),
            view=TableView(name="orders", partitions=self.partitions, replicas=replicas, consensus_size=size),
        )
        requests = reconcile_table(desired, keys=KEYS, table=TABLE, epoch=self.epoch.compare)
        return await drive(requests, metastore=self.metastore, epoch=self.epoch)

    async def drop(self) -> None:
        """Drop the table; returns when no store holds anything of it."""
        await self.until(self._dropped, within=60)

    async def _dropped(self) -> bool:
        requests = drop_table(keys=KEYS, table=TABLE, epoch=self.epoch.compare)
        await drive(requests, metastore=self.metastore, epoch=self.epoch)
        return await self.metastore.get(KEYS.tombstone(TABLE)) is None

    async def drain(self, name: str) -> None:
        """Let a user ask for a store to be emptied, as well as those before it, and the operator decide."""
        self._draining.append(name)
        while not await self._decide_store_states():
            pass  # a store registered, or went, since it was read: the operator judges again as well

    async def _decide_store_states(self) -> bool:
        found = await self.metastore.range(KEYS.all_stores())
        desired = DesiredStores(cluster=store_cluster(drain=",".join(self._draining)))
        known = read_stores(found.kvs, KEYS)
        txns = decide_store_states(
            known, desired, keys=KEYS, now=time.time(), restart_delays=False, epoch=self.epoch.compare
        )
        return all([(await self.metastore.txn(txn)).succeeded for txn in list(txns)])

    async def volume(self, store: str) -> str:
        """The volume under which a store is registered; empty where it is not."""
        kv = await self.metastore.get(KEYS.store(store))
        return decode(StoreRecord, kv.value, key=kv.key).volume if kv is not None else ""

    async def leader(self, partition: int = 0) -> str:
        """The store that is reported to lead a partition; empty where none is."""
        kv = await self.metastore.get(KEYS.leader(TABLE, partition))
        return decode(Leader, kv.value, key=kv.key).store if kv is not None else ""

    async def retire(self, name: str) -> None:
        """Stop a store in good order."""
        store = self.stores.pop(name)
        await store.end(signal.SIGTERM)

    # Waiting

    async def until(self, condition: Callable[[], Any], *, within: float = 60.0) -> None:
        """Ask again and again; processes tell nobody when they are done."""
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
        """The table's keys."""
        found = await read_at_one_revision(self.metastore, read_table(KEYS, TABLE).prefixes)
        return TableSnapshot(KEYS, TABLE, found)

    async def settled(self) -> bool:
        """Whether every partition is where the newest plan wants it, and nothing is under way."""
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
        """Replicas that run where stable does not name them."""
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
        """What etcd, the sidecars and the logs say, for a failing test."""
        logs = [f"== {name}\n{store.log()}" for name, store in self.stores.items()]
        with contextlib.suppress(Exception):
            snapshot = await self.snapshot()
            lines = [f"plan {snapshot.plan.n if snapshot.plan else None}"]
            lines += [f"{partition}: {snapshot.partition(partition)}" for partition in range(min(4, self.partitions))]
            for store in self.stores.values():
                lines.append(f"{store.name}: {await store.status()}")
            return "\n".join((*lines, *logs))
        return "\n".join(("(etcd does not answer)", *logs))
