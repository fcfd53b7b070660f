"""Zones of stores: the zone of a store's node, unless the StoreCluster overrides it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from evenkeel.kube.object_kinds import Object
from evenkeel.model.storecluster import StoreCluster, StoreOverride

__all__ = ["found_zones", "with_zones", "zones_from"]


def found_zones(cluster: StoreCluster, pods: Iterable[Object], nodes: Mapping[str, Object]) -> dict[str, str]:
    """Return, by store, the zone of the node that its pod is on, if known."""
    zones = {}
    for pod in pods:
        node = nodes.get(pod["spec"].get("nodeName", ""))
        zone = node["metadata"].get("labels", {}).get(cluster.spec.topology_key, "") if node is not None else ""
        if zone:
            zones[pod["metadata"]["name"]] = zone
    return zones


def with_zones(cluster: StoreCluster, zones: Mapping[str, str]) -> StoreCluster:
    """Return the StoreCluster with zones as overrides; zones that the user wrote take precedence."""
    written = {override.name: override for override in cluster.spec.overrides}
    found = {
        name: written.get(name, StoreOverride(name=name)).model_copy(update={"zone": zone})
        for name, zone in zones.items()
        if name not in written or written[name].zone is None
    }
    if not found:
        return cluster
    overrides = tuple(override for _, override in sorted((written | found).items()))
    return cluster.model_copy(update={"spec": cluster.spec.model_copy(update={"overrides": overrides})})


def zones_from(cluster: StoreCluster, zones: Mapping[str, str]) -> Literal["Nodes", "Overrides", "None"]:
    """Return where zones come from, for the status."""
    if zones:
        return "Nodes"
    return "Overrides" if any(override.zone for override in cluster.spec.overrides) else "None"
