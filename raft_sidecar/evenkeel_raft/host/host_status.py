"""What probes, metrics and the status page read of a host."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from evenkeel.wire.framing import Drops
from evenkeel_raft.host.caught_up import is_behind
from evenkeel_raft.host.host_context import HostContext
from evenkeel_raft.host.host_maintenance import HostMaintenance
from evenkeel_raft.host.log_retention import LogRetention
from evenkeel_raft.host.raft_replica import Replica
from evenkeel_raft.host.replica_views import ReplicaStatus, describe
from evenkeel_raft.log.log_writer import RoundTimes
from evenkeel_raft.log.shared_log import LogStats, SharedLog
from evenkeel_raft.shared.raft_groups import Partition

__all__ = ["HostStatus"]

_REPLICAS_PER_TURN: Final = 100


class HostStatus:
    """Read-only view of a host."""

    def __init__(
        self,
        replicas: Mapping[int, Replica],
        *,
        log: SharedLog,
        context: HostContext,
        maintenance: HostMaintenance,
    ) -> None:
        self._replicas = replicas
        self._log = log
        self._context = context
        self._maintenance = maintenance

    # Replicas

    async def replica_statuses(self) -> list[ReplicaStatus]:
        """Describe every replica; yields to the event loop in between, so the result is not one moment."""
        found: list[ReplicaStatus] = []
        for replica in list(self._replicas.values()):
            found.append(describe(replica))
            if len(found) % _REPLICAS_PER_TURN == 0:
                await asyncio.sleep(0)
        return found

    def behind(self) -> list[Partition]:
        """Return the groups that might lose their quorum if another store stopped now."""
        return [replica.partition for replica in self._replicas.values() if is_behind(replica)]

    @property
    def awake(self) -> int:
        """Number of groups that are awake."""
        return self._maintenance.awake

    # State machine

    @property
    def machine_connected(self) -> bool:
        """Whether the state machine is connected."""
        return self._context.machine.connected

    @property
    def machine_silent(self) -> bool:
        """Whether the state machine is connected and does not answer."""
        return self._maintenance.health.silent

    @property
    def machine_drops(self) -> Drops:
        """Dropped connections of state machines, by reason."""
        return self._context.machine.drops

    # Peers

    def peer_states(self) -> dict[str, str]:
        """Return "connected", or why not, for each other store."""
        peers = self._context.peers
        return {
            store: "connected" if peers.connected(store) else peers.refusals.get(store, "not connected")
            for store in sorted(peers.addresses)
        }

    @property
    def snapshots_at_once(self) -> int:
        """Number of snapshots that may be made and sent at the same time."""
        return self._context.snapshot_slots.limit

    # Log

    @property
    def log_retention(self) -> LogRetention:
        """Total length of all groups' logs, and how much each may keep."""
        return self._context.retention

    def log_stats(self) -> LogStats:
        """Return statistics of the log, read while its thread works, so not one moment."""
        return self._log.stats()

    @property
    def round_times(self) -> RoundTimes:
        """Durations of the log's rounds."""
        return self._context.writer.times
