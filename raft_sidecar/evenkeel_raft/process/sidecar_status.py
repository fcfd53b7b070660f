"""The `/status` document and readiness of a sidecar."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from evenkeel.versions import VersionRange
from evenkeel_raft.agent.agent import Agent
from evenkeel_raft.host.host import Host
from evenkeel_raft.host.replica_views import ReplicaStatus

__all__ = ["SidecarStatus", "status_of", "unready"]


class SidecarStatus(Struct, frozen=True, kw_only=True):
    """The status of the process at one moment."""

    store: str
    volume: str
    version: str
    cluster_version: int
    supported_versions: VersionRange
    """The cluster versions that both the sidecar and its state machine support."""
    ready: bool
    why: str
    """Why it is not ready; empty if it is."""
    metastore: str
    """connecting, mismatch, unregistered or following."""
    metastore_why: str
    revision: int
    state_machine: str
    """connected, silent (it does not respond) or gone."""
    disk_full: str
    """Why the log cannot be written; empty if it can."""
    handing_over: list[str]
    """Why the store may not lead; empty if it may."""
    peers: dict[str, str]
    """By store: connected, or why not."""
    clock_ahead: int
    """Seconds that the wall clock is ahead of most stores' (negative: behind); 0 while it is close."""
    clock_skews: dict[str, float]
    """By connected store: seconds that its wall clock is ahead of this store's."""
    awake: int
    problems: dict[str, str]
    """By `<table>/<partition>`: why it makes no progress."""
    replicas: list[ReplicaStatus]


async def status_of(host: Host, agent: Agent, *, version: str) -> SidecarStatus:
    """Return the status of the process."""
    replicas = await host.status.replica_statuses()
    of_agent = agent.status()
    why = unready(host)
    return SidecarStatus(
        store=host.identity.store,
        volume=host.identity.volume,
        version=version,
        cluster_version=of_agent.version,
        supported_versions=of_agent.announced,
        ready=not why,
        why=why,
        metastore=of_agent.state.value,
        metastore_why=of_agent.why,
        revision=of_agent.revision,
        state_machine=_state_machine(host),
        disk_full=host.full,
        handing_over=list(of_agent.handing_over),
        peers={**of_agent.peers, **host.status.peer_states()},
        clock_ahead=host.clock_ahead(),
        clock_skews={store: round(skew.seconds, 3) for store, skew in host.peers.skews().items()},
        awake=host.status.awake,
        problems={f"{partition.table}/{partition.partition}": why for partition, why in of_agent.problems.items()},
        replicas=replicas,
    )


def _state_machine(host: Host) -> str:
    if not host.status.machine_connected:
        return "gone"
    return "silent" if host.status.machine_silent else "connected"


def unready(host: Host) -> str:
    """Return why the store is not ready; a rolling update waits until it is, so that no group loses its quorum."""
    if not host.status.machine_connected:
        return "the state machine is not connected"
    if host.status.machine_silent:
        return "the state machine does not answer"
    if host.full:
        return host.full
    if behind := host.status.behind():
        named = ", ".join(f"{table}/{partition}" for table, partition in behind[:3])
        return f"{len(behind)} replicas have not caught up: {named}{' ...' if len(behind) > 3 else ''}"
    return ""


def encode(status: SidecarStatus) -> bytes:
    """Encode the status as JSON."""
    return msgspec.json.encode(status)
