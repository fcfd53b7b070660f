"""The processes of a local cluster's stores."""

from __future__ import annotations

from pathlib import Path

from evenkeel.local.layout import Layout, StorePorts
from evenkeel.local.stores import StorePair
from evenkeel.model.storecluster import StoreCluster
from evenkeel_raft.process.options import Options, parse_options


def sidecar(directory: Path, throttles: dict[str, object]) -> Options:
    """What a store's sidecar makes of what it is told."""
    document = {
        "apiVersion": "evenkeel.dev/v1alpha1",
        "kind": "StoreCluster",
        "metadata": {"name": "main"},
        "spec": {"stores": 3, "storage": {"size": "1Gi"}, "throttles": throttles},
    }
    cluster = StoreCluster.model_validate(document)
    pair = StorePair("main-0", cluster, Layout(directory), StorePorts(1, 2, 3, 4), "http://127.0.0.1:2379")
    return parse_options(pair.sidecar.command[3:], {})


def test_throttles_reach_the_sidecar(tmp_path: Path) -> None:
    """The same as on Kubernetes."""
    limited = sidecar(tmp_path, {"bytesPerSecond": "10M", "maxConcurrentMoves": 7}).host
    assert (limited.bytes_per_second, limited.snapshots_at_once) == (10_000_000, 7)
    free = sidecar(tmp_path, {}).host
    assert (free.bytes_per_second, free.snapshots_at_once) == (None, 4)
