"""Volumes on the disks of nodes: a folder and a local PersistentVolume each."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from e2e.cluster.node import Node

__all__ = ["STORAGE_CLASS", "storage_class", "volumes"]

STORAGE_CLASS = "local"
_FOLDER = Path("/var/lib/volumes")


def storage_class() -> dict[str, Any]:
    """Return the default StorageClass, which binds a claim when its pod is scheduled."""
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {
            "name": STORAGE_CLASS,
            "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
        },
        "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": "WaitForFirstConsumer",
    }


def volumes(nodes: Iterable[Node], count: int, *, owner: int) -> Iterator[dict[str, Any]]:
    """Create this many folders, owned by this user, on each node, and return a volume for each."""
    for node in nodes:
        for _ in range(count):
            name = f"{node.name}-{secrets.token_hex(4)}"
            folder = node.root / (_FOLDER / name).relative_to("/")
            folder.mkdir(parents=True)
            os.chown(folder, owner, owner)
            yield _volume(name, node.name)


def _volume(name: str, node: str) -> dict[str, Any]:
    hostname = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "10Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": STORAGE_CLASS,
            "persistentVolumeReclaimPolicy": "Retain",
            "hostPath": {"path": str(_FOLDER / name), "type": "Directory"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [hostname]}]}},
        },
    }
