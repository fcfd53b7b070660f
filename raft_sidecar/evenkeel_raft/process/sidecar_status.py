"""What people and tools read of a sidecar, and whether it is ready."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from evenkeel.versions import VersionRange
from evenkeel_raft.agent.agent import Agent
from evenkeel_raft.host.host import Host
from evenkeel_raft.host.replica_views import ReplicaStatus

__all__ = ["SidecarStatus", "status_of", "unready"]


class SidecarStatus(Struct, frozen=True, kw_only=True):
    """A moment of the process."""

    store: str
    volume: str
    version: str
    cluster_version: int
    supported_versions: VersionRange
    """The cluster versions that the sidecar and its state machine can work with."""
    ready: bool
    why: str
    """Why it is not ready; empty if it is."""
    metastore: str
    """connecting, mismatch, unregistered or following."""
    metastore_why: str
    revision: int
    state_machine: str
    """connected, silent (it hangs) or gone."""
    disk_full: str
    """Why nothing can be logged at the moment; empty if it can."""
    handing_over: list[str]
    """Why the store is to lead nothing; empty if it may."""
    peers: dict[str, str]
    """By store: connected, or why not."""
    clock_ahead: int
    """Seconds that this store's wall clock is ahead of most stores', behind where negative; 0 while it is close."""
    clock_skews: dict[str, float]
    """By store that is connected: seconds that its wall clock is ahead of this one's."""
    awake: int
    problems: dict[str, str]
    """By `<table>/<partition>`: why it does not get on, whoever found out."""
    replicas: list[ReplicaStatus]


async def status_of(host: Host, agent: Agent, *, version: str) -> SidecarStatus:
    """Describe the process."""
    replicas = await host.replica_statuses()
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
        state_machine="gone" if not host.machine_connected else "silent" if host.machine_silent else "connected",
        disk_full=host.full,
        handing_over=list(of_agent.handing_over),
        peers={**of_agent.peers, **host.peer_states()},
        clock_ahead=host.clock_ahead(),
        clock_skews={store: round(skew.seconds, 3) for store, skew in host.peers.skews().items()},
        awake=host.awake,
        problems={f"{partition.table}/{partition.partition}": why for partition, why in of_agent.problems.items()},
        replicas=replicas,
    )


def unready(host: Host) -> str:
    """Say why the store is not ready: a rolling update waits for it, so that no group loses its quorum."""
    if not host.machine_connected:
        return "the state machine is not connected"
    if host.machine_silent:
        return "the state machine does not answer"
    if host.full:
        return host.full
    if behind := host.behind():
        named = ", ".join(f"{table}/{partition}" for table, partition in behind[:3])
        return f"{len(behind)} replicas are not caught up: {named}{' ...' if len(behind) > 3 else ''}"
    return ""


def encode(status: SidecarStatus) -> bytes:
    """As JSON."""
    return msgspec.json.encode(status)
