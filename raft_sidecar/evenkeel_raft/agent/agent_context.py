"""The dependencies that all parts of an agent share."""

from __future__ import annotations

from typing import NamedTuple

from evenkeel.metastore.metastore_api import Metastore
from evenkeel.protocol.keys import Keys
from evenkeel.protocol.records import StoreRecord
from evenkeel.runtime.backoff import Rng
from evenkeel.runtime.clock import Clock
from evenkeel.runtime.work_queue import WorkQueue
from evenkeel_raft.agent.agent_counters import Counters
from evenkeel_raft.agent.agent_settings import AgentSettings, Tuning
from evenkeel_raft.agent.cluster_version_watch import ClusterVersion
from evenkeel_raft.shared.raft_groups import Groups, Partition

__all__ = ["AgentContext", "StoreIdentity"]


class StoreIdentity(NamedTuple):
    """The identity under which the store registers itself."""

    store: str
    record: StoreRecord
    pod: str = ""
    """The UID of the store's pod; an order may be addressed to one pod."""

    @property
    def volume(self) -> str:
        """The id of the store's volume; a wiped store gets a new one."""
        return self.record.volume


class AgentContext(NamedTuple):
    """Everything that all parts of one agent share."""

    metastore: Metastore
    keys: Keys
    groups: Groups
    me: StoreIdentity
    clock: Clock
    rng: Rng
    settings: AgentSettings
    counters: Counters
    queue: WorkQueue[Partition]
    tuning: Tuning
    """The settings that can change at run time."""
    version: ClusterVersion
