"""Runs in a pod of its own: a client that never stops writing, and another that looks for every row it was promised.

python3 client.py write     until /tmp/stop exists; /tmp/told has what was acknowledged so far
python3 client.py check     reads everything, and prints what it found as JSON
python3 client.py sum       prints how many rows there are, and a checksum over them
"""

from __future__ import annotations

import json
import os
import sys
import time
import zlib
from pathlib import Path
from typing import Any

from evenkeel.client import Client
from evenkeel.errors import EvenkeelError

SECRET = Path("/secret")
SCRATCH = Path("/tmp")
TABLE = os.environ["TABLE"]
BATCH = 20


def connect() -> Client:
    """As any job does, from what the Secret says."""
    endpoints = (SECRET / "endpoints").read_text().split(",")
    authority = SECRET / "ca.crt"
    return Client(
        endpoints, token=(SECRET / "token").read_text(), ca=authority if authority.exists() else None, deadline=60.0
    )


def tell(**told: Any) -> None:
    """Replace what is told, so that a reader sees the one or the other."""
    partial = SCRATCH / "told.new"
    partial.write_text(json.dumps(told))
    partial.rename(SCRATCH / "told")


def write() -> None:
    """Write rows 0, 1, 2 ... and note how many were acknowledged, and the longest wait for one that was."""
    acknowledged, errors, longest = 0, [], 0.0
    with connect() as client:
        table = client.table(TABLE)
        while not (SCRATCH / "stop").exists():
            rows = [{"id": n, "customer": f"customer-{n}"} for n in range(acknowledged, acknowledged + BATCH)]
            begun = time.monotonic()
            try:
                table.upsert(rows)
            except EvenkeelError as error:
                errors.append(str(error))
                time.sleep(0.2)
            else:
                acknowledged += BATCH
                longest = max(longest, time.monotonic() - begun)
            tell(acknowledged=acknowledged, errors=errors[-5:], failed=len(errors), longest=longest)
            time.sleep(0.02)


def check() -> None:
    """Compare all rows with what was acknowledged before they were read."""
    told = json.loads((SCRATCH / "told").read_text())
    with connect() as client:
        found = client.table(TABLE).scan(["id", "customer"]).to_pydict()
    rows = dict(zip(found["id"], found["customer"], strict=True))
    missing = [n for n in range(told["acknowledged"]) if rows.get(n) != f"customer-{n}"]
    print(json.dumps({**told, "rows": len(found["id"]), "distinct": len(rows), "missing": missing[:20]}))


def sum_up() -> None:
    """Tell what there is, whoever wrote it."""
    with connect() as client:
        found = client.table(TABLE).scan(["id", "customer"]).to_pydict()
    sums = [zlib.crc32(f"{n},{customer}".encode()) for n, customer in zip(found["id"], found["customer"], strict=True)]
    print(json.dumps({"rows": len(sums), "distinct": len(set(found["id"])), "checksum": sum(sums)}))


if __name__ == "__main__":
    {"write": write, "check": check, "sum": sum_up}[sys.argv[1]]()
