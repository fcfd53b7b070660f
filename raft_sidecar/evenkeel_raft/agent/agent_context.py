"""What all parts of the agent work with."""

from __future__ import annotations

from typing import NamedTuple

from evenkeel.metastore.metastore_api import Metastore
from evenkeel.protocol.keys import Keys
from evenkeel.protocol.records import StoreRecord
from evenkeel.runtime.backoff import Rng
from evenkeel.runtime.clock import Clock
from evenkeel_raft.agent.agent_counters import Counters
from evenkeel_raft.agent.agent_queue import Work
from evenkeel_raft.agent.agent_settings import AgentSettings, Tuning
from evenkeel_raft.agent.cluster_version_watch import Version
from evenkeel_raft.shared.raft_groups import Groups

__all__ = ["Context", "StoreIdentity"]


class StoreIdentity(NamedTuple):
    """The store as it registers itself."""

    store: str
    record: StoreRecord
    pod: str = ""
    """The UID of the pod it runs in, for orders that mean this pod alone."""

    @property
    def volume(self) -> str:
        """The disk it runs on; a wiped store has another one."""
        return self.record.volume


class Context(NamedTuple):
    """One agent's surroundings, the same for all its parts."""

    metastore: Metastore
    keys: Keys
    groups: Groups
    me: StoreIdentity
    clock: Clock
    rng: Rng
    settings: AgentSettings
    counters: Counters
    work: Work
    tuning: Tuning
    """The settings that can change while the agent runs."""
    version: Version
