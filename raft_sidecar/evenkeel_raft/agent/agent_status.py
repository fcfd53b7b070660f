"""States and status of the agent."""

from __future__ import annotations

import enum

import msgspec

from evenkeel.versions import VersionRange
from evenkeel_raft.agent.agent_counters import Counters
from evenkeel_raft.shared.raft_groups import Partition

__all__ = ["AgentState", "AgentStatus"]


class AgentState(enum.StrEnum):
    """The agent's state; the agent acts on the metastore only in `following`."""

    CONNECTING = "connecting"
    """The metastore does not answer, or its keys are not listed yet. Replicas run; nothing is changed."""
    MISMATCH = "mismatch"
    """The metastore is not the one this volume follows, or it lost its contents. Nothing is changed."""
    UNREGISTERED = "unregistered"
    """Another process holds the store's name, or registration has not succeeded yet. Nothing is changed."""
    FOLLOWING = "following"


class AgentStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The agent's status at one moment."""

    state: AgentState
    why: str
    """Why the state is not `following`; empty if it is."""
    revision: int
    """The metastore revision up to which the watch has delivered all events."""
    partitions: int
    """Partitions that concern this store."""
    replicas: int
    leading: int
    handing_over: tuple[str, ...]
    """Why the store may not lead; empty if it may."""
    problems: dict[Partition, str]
    """Why partitions make no progress."""
    peers: dict[str, str]
    """Why stores cannot be reached, for stores with an invalid record."""
    counters: Counters
    version: int
    """The cluster version."""
    announced: VersionRange
    """The cluster versions that this store supports."""
