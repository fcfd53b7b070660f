"""Runs in its own pod: a client that writes continuously, and one that checks every acknowledged row.

python3 client.py write     writes until /tmp/stop exists; /tmp/progress has the number of acknowledged rows
python3 client.py check     reads all rows, and prints the result as JSON
python3 client.py sum       prints the number of rows and their checksum
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
    """Connect with the client Secret, as any job does."""
    endpoints = (SECRET / "endpoints").read_text().split(",")
    authority = SECRET / "ca.crt"
    return Client(
        endpoints, token=(SECRET / "token").read_text(), ca=authority if authority.exists() else None, deadline=60.0
    )


def publish(**progress: Any) -> None:
    """Replace the progress file atomically."""
    partial = SCRATCH / "progress.new"
    partial.write_text(json.dumps(progress))
    partial.rename(SCRATCH / "progress")


def write() -> None:
    """Write rows 0, 1, 2 ...; publish how many were acknowledged, and the longest write."""
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
            publish(acknowledged=acknowledged, errors=errors[-5:], failed=len(errors), longest=longest)
            time.sleep(0.02)


def check() -> None:
    """Compare all rows with those that were acknowledged before the read."""
    progress = json.loads((SCRATCH / "progress").read_text())
    with connect() as client:
        found = client.table(TABLE).scan(["id", "customer"]).to_pydict()
    rows = dict(zip(found["id"], found["customer"], strict=True))
    missing = [n for n in range(progress["acknowledged"]) if rows.get(n) != f"customer-{n}"]
    print(json.dumps({**progress, "rows": len(found["id"]), "distinct": len(rows), "missing": missing[:20]}))


def sum_up() -> None:
    """Print the number and checksum of all rows."""
    with connect() as client:
        found = client.table(TABLE).scan(["id", "customer"]).to_pydict()
    sums = [zlib.crc32(f"{n},{customer}".encode()) for n, customer in zip(found["id"], found["customer"], strict=True)]
    print(json.dumps({"rows": len(sums), "distinct": len(set(found["id"])), "checksum": sum(sums)}))


if __name__ == "__main__":
    {"write": write, "check": check, "sum": sum_up}[sys.argv[1]]()
