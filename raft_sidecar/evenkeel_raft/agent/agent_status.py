"""What the agent says of itself, for people and probes."""

from __future__ import annotations

import enum

import msgspec

from evenkeel.versions import VersionRange
from evenkeel_raft.agent.agent_counters import Counters
from evenkeel_raft.shared.raft_groups import Partition

__all__ = ["AgentState", "AgentStatus"]


class AgentState(enum.StrEnum):
    """What the agent is doing; only `following` ones act on the metastore's word."""

    CONNECTING = "connecting"
    """No metastore answers, or it has yet to be listed. Replicas run, nothing is changed."""
    MISMATCH = "mismatch"
    """The metastore is not the one this volume has followed, or lost its contents. Nothing is changed."""
    UNREGISTERED = "unregistered"
    """Another process has the store's name, or registering has yet to succeed. Nothing is changed."""
    FOLLOWING = "following"


class AgentStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A moment of the agent."""

    state: AgentState
    why: str
    """Why it is not following; empty if it is."""
    revision: int
    """The metastore's, up to which the watch has shown everything."""
    partitions: int
    """Those that concern this store."""
    replicas: int
    leading: int
    handing_over: tuple[str, ...]
    """Why the store is to lead nothing; empty if it may."""
    problems: dict[Partition, str]
    """Partitions that do not get on, and why."""
    peers: dict[str, str]
    """Stores that cannot be reached for what their record says."""
    counters: Counters
    version: int
    """The cluster version."""
    announced: VersionRange
    """The cluster versions that this store can work with."""
