"""`kubectl evenkeel` on a real cluster: kubectl finds the plugin on PATH, and stores use TLS."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from e2e.cluster.binaries import find
from e2e.cluster.processes import run
from e2e.shop import Shop

_PROGRAMS = Path(sys.executable).parent


class Plugin:
    """`kubectl evenkeel` in one namespace."""

    def __init__(self, shop: Shop) -> None:
        self._command = [str(find("kubectl")), "evenkeel"]
        config = () if shop.kubectl.kubeconfig is None else (f"--kubeconfig={shop.kubectl.kubeconfig}",)
        self._where = (*config, f"--namespace={shop.namespace}")
        self._environment = {**os.environ, "PATH": f"{_PROGRAMS}:{os.environ['PATH']}"}

    def __call__(self, *arguments: str) -> str:
        return run(*self._command, *arguments, *self._where, env=self._environment, within=180)

    def data(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "--output=json"))

    def watched(self, *arguments: str, until: str) -> int:
        """Watch until a line appears, send Ctrl-C, and return the exit status."""
        command = [*self._command, *arguments, "-w", *self._where]
        with subprocess.Popen(command, env=self._environment, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert any(until in line for line in process.stdout), f"it ended before it said {until!r}"
            process.send_signal(signal.SIGINT)
            process.stdout.read()
            return process.wait(timeout=30)


def test_every_verb(shop: Shop) -> None:
    """Status, partitions, a plan, a pause, a leader, a drain, an undrain and SQL, while a client writes."""
    shop.open(stores=4, partitions=4, replicas=1)
    shop.start_client()
    plugin = Plugin(shop)

    [table] = plugin.data("status")["tables"]
    assert (table["metadata"]["name"], table["status"]["leaderless"]) == ("orders", 0)
    assert "storecluster main: 4/4 stores" in plugin("status")
    assert [found["partition"] for found in plugin.data("partitions", "orders")] == [0, 1, 2, 3]
    assert plugin.watched("status", until="storecluster main") == 0
    assert plugin.watched("partitions", "orders", until="Stable") == 0

    assert plugin.data("plan", "orders", "--replicas=3")["totals"]["moves"] == 8
    assert shop.status()["replicas"] == 1

    plugin("pause", "table/orders")
    shop.scale("table/orders", 3)
    shop.kubectl.wait("the operator has seen that", lambda: shop.seen("table/orders"))
    assert "Paused" in plugin("status")
    assert shop.status()["replicas"] == 1
    plugin("resume", "table/orders")
    plugin("wait", "table/orders", "--for=Balanced", "--timeout=120")
    shop.settle()

    first = plugin.data("partitions", "orders")[0]
    other = next(peer["store"] for peer in first["stable"] if peer["store"] != first["leader"])
    plugin("hand-over", "orders", "0", other)
    shop.kubectl.wait(f"{other} leads", lambda: plugin.data("partitions", "orders")[0]["leader"] == other, within=60)

    assert "store main-1 drained" in plugin("drain", "main-1", "--wait")
    assert "main-1" not in shop.holders()
    plugin("undrain", "main-1")
    shop.kubectl.wait("main-1 holds something", lambda: "main-1" in shop.holders(), within=120)
    shop.settle()

    before = shop.progress().acknowledged
    [row] = plugin.data("sql", "select count(*) as n, count(distinct id) as ids from orders")
    assert row["n"] == row["ids"] >= before
    found = shop.check()
    assert found.failed == 0, found.errors
