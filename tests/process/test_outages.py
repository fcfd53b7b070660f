"""An unavailable table soon reports the reason and the remedy; after the repair it is Ready again.

Etcd, sidecars, stores and controller are real processes. That the report takes less than ten seconds is tested in
virtual time (tests/controller/test_with_agents.py); a busy machine takes longer.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.process.test_local import Here, processes, until
from tests.store.file_damage import flip

WITHIN: Final = 60.0
"""Seconds from a failure to the status that reports it, on a busy machine."""
_MIB: Final = 1 << 20


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Here]:
    found = Here(tmp_path / "c")
    yield found
    found.close()


def ready(here: Here, table: str) -> dict[str, Any]:
    """Return the Ready condition of a table."""
    conditions = here.json("get", f"table/{table}")["status"]["conditions"]
    return next(entry for entry in conditions if entry["type"] == "Ready")


def reported_message(here: Here, table: str, reason: str) -> str:
    """Wait until a table is not Ready for this reason; return the message."""
    until(lambda: ready(here, table)["reason"] == reason, within=WITHIN)
    found = ready(here, table)
    assert found["status"] == "False"
    return str(found["message"])


def kill(here: Here, *stores: str) -> None:
    """Kill stores and wait until their processes have ended."""
    for store in stores:
        here.run("local", "kill", store)
    until(
        lambda: all(
            store["state"] == "down" for store in here.json("local", "status")["stores"] if store["store"] in stores
        )
    )


def start(here: Here, *stores: str) -> None:
    for store in stores:
        here.run("local", "kill", store, "--undo")


def test_two_of_three_stores_are_killed(here: Here) -> None:
    """Every partition loses its quorum, also one with a hibernated leader; with one more store all are served."""
    here.run("local", "up", "--stores", "3")
    here.make("orders")
    kill(here, "main-1", "main-2")
    assert "main-1, main-2; start these stores with" in reported_message(here, "orders", "NoQuorum")
    until(lambda: here.json("get", "table/orders")["status"]["leaderless"] == 4)
    assert {entry["stage"] for entry in here.json("partitions", "orders")} == {"Leaderless"}
    start(here, "main-1")
    here.run("wait", "table/orders", "--timeout", "120")
    assert here.count("orders") == 100


def test_all_three_stores_hang(here: Here) -> None:
    """Sidecars still respond, but no row can be read or written until the stores continue."""
    here.run("local", "up", "--stores", "3")
    here.make("orders")
    hanging = [pid for name, pid in processes(here).items() if name.endswith(" store") and pid is not None]
    assert len(hanging) == 3
    try:
        for pid in hanging:
            os.kill(pid, signal.SIGSTOP)
        assert "main-0, main-1, main-2" in reported_message(here, "orders", "NoLeader")
        until(lambda: here.json("get", "table/orders")["status"]["leaderless"] == 4)
    finally:
        for pid in hanging:
            os.kill(pid, signal.SIGCONT)
    here.run("wait", "table/orders", "--timeout", "120")
    assert here.count("orders") == 100


def test_a_sole_replica_with_an_empty_disk(here: Here) -> None:
    """The store registers without the data; with its old disk the table is Ready again."""
    here.run("local", "up", "--stores", "1")
    here.make("orders", replicas=1)
    kill(here, "main-0")
    disk = here.layout.store("main-0")
    shutil.move(disk, aside := disk.with_name("aside"))
    start(here, "main-0")
    assert "delete the table and load its rows again" in reported_message(here, "orders", "DataLost")
    kill(here, "main-0")
    shutil.rmtree(disk)
    shutil.move(aside, disk)
    start(here, "main-0")
    here.run("wait", "table/orders", "--timeout", "120")
    assert here.count("orders") == 100


def test_all_three_replicas_are_damaged(here: Here) -> None:
    """The damage is older than the log, so no replica can serve; after one is repaired, the table is served."""
    here.run("local", "up", "--stores", "3")
    here.make("orders")
    with here.client() as client:
        for number in range(1000, 1100):
            client.table("orders").upsert([{"id": number, "word": f"{number}{'x' * _MIB}"}])
    stores = ("main-0", "main-1", "main-2")
    kill(here, *stores)
    shutil.copytree(here.layout.store("main-0"), kept := here.root / "kept")
    for store in stores:
        flip(4096)(here.layout.store(store) / "store" / "tables.duckdb")
    start(here, *stores)
    assert "main-0, main-1, main-2" in reported_message(here, "orders", "ReplicaDamaged")
    kill(here, "main-0")
    shutil.rmtree(here.layout.store("main-0") / "store")
    shutil.copytree(kept / "store", here.layout.store("main-0") / "store")
    start(here, "main-0")
    here.run("wait", "table/orders", "--timeout", "120")
    assert here.count("orders") == 200
