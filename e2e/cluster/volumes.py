"""Volumes on the nodes' own disks: a folder each, and a PersistentVolume that stays where its folder is."""

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
    """The cluster's default class; a claim is bound when its pod is scheduled, to a volume of that node."""
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
    """So many new folders on each of these nodes, which belong to this user, and a volume for each."""
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
