"""What people and tools read of a sidecar, and whether it is ready."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from evenkeel_raft.agent.agent import Agent
from evenkeel_raft.host.host import Host
from evenkeel_raft.host.replica import ReplicaStatus

__all__ = ["SidecarStatus", "status_of", "unready"]


class SidecarStatus(Struct, frozen=True, kw_only=True):
    """A moment of the process."""

    store: str
    volume: str
    version: str
    ready: bool
    why: str
    """Why it is not ready; empty if it is."""
    metastore: str
    """connecting, mismatch, unregistered or following."""
    metastore_why: str
    revision: int
    state_machine: bool
    disk_full: str
    peers: dict[str, str]
    """By store: connected, or why not."""
    awake: int
    replicas: list[ReplicaStatus]


def status_of(host: Host, agent: Agent, *, version: str) -> SidecarStatus:
    """Describe the process."""
    of_agent = agent.status()
    why = unready(host)
    return SidecarStatus(
        store=host.identity.store,
        volume=host.identity.volume,
        version=version,
        ready=not why,
        why=why,
        metastore=of_agent.state.value,
        metastore_why=of_agent.why,
        revision=of_agent.revision,
        state_machine=host.machine_connected,
        disk_full=host.full,
        peers=host.peer_states(),
        awake=host.awake,
        replicas=host.replica_statuses(),
    )


def unready(host: Host) -> str:
    """Say why the store is not ready: a rolling update waits for it, so that no group loses its quorum."""
    if not host.machine_connected:
        return "the state machine is not connected"
    if host.full:
        return host.full
    behind = [replica for replica in host.replica_statuses() if not replica.caught_up]
    if behind:
        named = ", ".join(f"{replica.table}/{replica.partition}" for replica in behind[:3])
        return f"{len(behind)} replicas are not caught up: {named}{' ...' if len(behind) > 3 else ''}"
    return ""


def encode(status: SidecarStatus) -> bytes:
    """As JSON."""
    return msgspec.json.encode(status)
