"""Samples leaders, replicas and copied bytes twice a second."""

from __future__ import annotations

import asyncio
import contextlib
import time
import urllib.request
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from demo.cluster import NAME
from demo.facts import Sample
from evenkeel.cli.local_session import LocalSession
from evenkeel.errors import EvenkeelError
from evenkeel.local.cluster_directory import StorePorts
from evenkeel.model.partitionassignment import PartitionStatus

__all__ = ["Watch", "counter", "sample_of"]

_SECONDS: Final = 0.5
_TIMEOUT: Final = 1.0
_OPENER: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))
_COPIED: Final = "evenkeel_raft_snapshot_bytes_total"
_WASTED: Final = "evenkeel_raft_wasted_snapshot_bytes_total"


class Watch:
    """Samples the table until it is cancelled."""

    def __init__(self, session: LocalSession, table: str, *, stores: int, began: float) -> None:
        self.samples: list[Sample] = []
        self._session = session
        self._table = table
        self._stores = [f"{NAME}-{number}" for number in range(stores)]
        self._began = began

    @property
    def now(self) -> Sample:
        """The last sample; an empty one at first."""
        return self.samples[-1] if self.samples else sample_of(0, self._stores, ())

    async def run(self) -> None:
        """Sample periodically."""
        while True:
            # A cluster under stress may not answer in time; the next sample will show its state.
            with contextlib.suppress(EvenkeelError):
                self.samples.append(await self.sample())
            await asyncio.sleep(_SECONDS)

    async def sample(self) -> Sample:
        """Return a new sample."""
        found = await self._session.resources.assignments(self._table)
        partitions = [one for piece in found if piece.status for one in piece.status.partitions]
        at = time.monotonic() - self._began
        texts = await asyncio.to_thread(_metrics, self._session.layout.ports().stores)
        return sample_of(at, self._stores, partitions, texts)


def sample_of(
    at: float, stores: Iterable[str], partitions: Iterable[PartitionStatus], metrics: Mapping[str, str] | None = None
) -> Sample:
    """Count leaders, replicas, changes and bytes."""
    found = list(partitions)
    leaders = Counter(one.leader for one in found if one.leader)
    replicas = Counter(peer.store for one in found for peer in one.stable)
    names = list(stores)
    texts = metrics or {}
    return Sample(
        at=at,
        leaders={name: leaders[name] for name in names},
        replicas={name: replicas[name] for name in names},
        moving=sum(bool(one.pending or one.planned) for one in found),
        leaderless=sum(not one.leader for one in found),
        copied={name: counter(text, _COPIED) for name, text in texts.items()},
        wasted={name: counter(text, _WASTED) for name, text in texts.items()},
    )


def counter(text: str, name: str) -> int:
    """Return a counter's value from Prometheus text; 0 if it is absent."""
    for line in text.splitlines():
        if line.startswith(f"{name} "):
            return int(float(line.split()[1]))
    return 0


def _metrics(ports: Mapping[str, StorePorts]) -> dict[str, str]:
    """Return the metrics of all sidecars that respond."""
    found = {}
    for name, own in ports.items():
        with contextlib.suppress(OSError):
            address = f"http://127.0.0.1:{own.http}/metrics"
            with _OPENER.open(address, timeout=_TIMEOUT) as answer:
                found[name] = answer.read().decode()
    return found
