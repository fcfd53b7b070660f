"""Time-driven work of a host: timers, sleep, compaction and hand-over of leadership.

Only groups that are awake cost anything, and of these only those with a timer due. All nodes share one tick counter,
and each node knows the tick at which its next timer is due. A follower in contact with its leader is due once per
election timeout.

A group without work sleeps, and the links between stores replace its heartbeats. When the leader's store disconnects,
the followers wake. When a store reconnects that was missing when the group fell asleep, the leader wakes. A leader
whose store no longer reaches a quorum wakes as well: only an awake leader notices that it has lost its followers, and
steps down.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from evenkeel.runtime.clock import Clock
from evenkeel.wire.sidecar_socket import SidecarSocket
from evenkeel_raft.core.raft_state import NEVER_DUE, Ticks
from evenkeel_raft.host.host_settings import HostSettings
from evenkeel_raft.host.log_retention import LogRetention
from evenkeel_raft.host.raft_replica import Replica
from evenkeel_raft.host.state_machine_health import StateMachineHealth
from evenkeel_raft.net.peers import Peers

__all__ = ["HostMaintenance"]

_SWEEP_TICKS: Final = 10
_REPLICAS_PER_TURN: Final = 100
_ORDERED: Final = "ordered"
_STOPPING: Final = "stopping"
_FULL: Final = "full"
_SILENT: Final = "silent"


class HostMaintenance:
    """Runs the maintenance of all replicas of a host."""

    def __init__(
        self,
        replicas: Mapping[int, Replica],
        *,
        settings: HostSettings,
        retention: LogRetention,
        clock: Clock,
        peers: Peers,
        machine: SidecarSocket,
    ) -> None:
        self.health = StateMachineHealth(
            replicas,
            machine=machine,
            clock=clock,
            timeout=settings.lag_seconds,
            on_change=self._set_silent,
        )
        self._replicas = replicas
        self._settings = settings
        self._retention = retention
        self._clock = clock
        self._peers = peers
        self._awake: dict[int, Replica] = {}
        self._inhibited_by: set[str] = set()
        """Why leadership is inhibited on this store; empty if it is not."""
        self.ticks = Ticks()
        self._due: dict[int, list[Replica]] = {}
        """Replicas by the tick they are due; rescheduled ones stay in the old list and are skipped there."""

    async def run(self) -> None:
        """Tick until cancelled; after a delay of the event loop, tick once and not several times."""
        while True:
            await self._clock.sleep(self._settings.tick_seconds)
            self.ticks.now += 1
            for replica in self._due.pop(self.ticks.now, ()):
                if replica.due == self.ticks.now:
                    self._tick(replica)
            if self.ticks.now % _SWEEP_TICKS == 0:
                await self._sweep()

    # Sleep

    def track(self, replica: Replica) -> None:
        """Start or resume running a replica's timers."""
        replica.asleep = False
        replica.busy_at = self.ticks.now
        self._awake[replica.group] = replica
        self._schedule(replica, self.ticks.now + 1)

    def untrack(self, replica: Replica) -> None:
        """Stop running a replica's timers."""
        replica.due = NEVER_DUE
        self._awake.pop(replica.group, None)

    def reschedule(self, replica: Replica) -> None:
        """Reschedule a replica whose next timer is due earlier than planned."""
        if not replica.asleep:
            self._schedule(replica, replica.node.due)
        elif not replica.node.quiesced:
            self.track(replica)

    def wake(self, replica: Replica) -> None:
        """Wake a replica."""
        self.track(replica)
        replica.wake()

    def _schedule(self, replica: Replica, tick: int) -> None:
        replica.due = max(tick, self.ticks.now + 1)
        self._due.setdefault(replica.due, []).append(replica)

    @property
    def awake(self) -> int:
        """Number of groups that are awake."""
        return len(self._awake)

    def on_store_disconnected(self, store: str) -> None:
        """Wake groups whose leader is on a disconnected store; record the store as missing in groups led here.

        A member that reconnects may have restarted; a learner would not wake the group itself.
        """
        for replica in self._replicas.values():
            if not replica.asleep:
                continue
            if replica.node.leading:
                if store in map(replica.store_of, replica.node.conf.members()):
                    replica.missing_stores |= {store}
                    if not replica.node.quorum_without(self._disconnected_members(replica)):
                        self.wake(replica)
            elif replica.store_of(replica.node.leader) == store:
                self.wake(replica)

    def on_store_connected(self, store: str) -> None:
        """Wake groups led here that fell asleep without this store, or missed it since."""
        for replica in self._replicas.values():
            if replica.asleep and store in replica.missing_stores:
                self.wake(replica)

    def _tick(self, replica: Replica) -> None:
        replica.tick()
        if replica.stopped:
            self.untrack(replica)
        elif replica.node.quiesced:
            self._fall_asleep(replica)
        elif replica.keep_awake:
            replica.notify_change()
            self._schedule(replica, self.ticks.now + 1)
        else:
            self._schedule(replica, replica.node.due)

    def _fall_asleep(self, replica: Replica) -> None:
        """Sleep with the leader, unless its store has disconnected: then nothing would wake this replica."""
        leader = replica.store_of(replica.node.leader)
        if leader is not None and leader != replica.id[0] and not self._peers.connected(leader):
            self.wake(replica)
        else:
            replica.asleep = True
            self.untrack(replica)

    def _sleep_if_idle(self, replica: Replica) -> None:
        if replica.busy:
            replica.busy, replica.busy_at = False, self.ticks.now
        idle = self.ticks.now - replica.busy_at >= self._settings.sleep_after_ticks
        if not idle or replica.keep_awake or not replica.node.leading or replica.stopped:
            return
        lost = self._disconnected_members(replica)
        if replica.node.quiesce(lost=lost):
            replica.missing_stores = frozenset(lost.values())
            replica.asleep = True
            self.untrack(replica)
            replica.process_ready()

    def _disconnected_members(self, replica: Replica) -> dict[int, str]:
        """Return the members on disconnected stores, with their stores."""
        members = {number: replica.store_of(number) for number in replica.node.conf.members()}
        return {
            number: store
            for number, store in members.items()
            if store is not None and store != replica.id[0] and not self._peers.connected(store)
        }

    # Sweep

    async def _sweep(self) -> None:
        self.health.check()
        total = 0
        for number, replica in enumerate(list(self._replicas.values()), start=1):
            if number % _REPLICAS_PER_TURN == 0:
                await asyncio.sleep(0)
            if replica.stopped:
                continue
            if not replica.asleep or self._retention.over_limit:
                replica.compaction.measure()
                replica.compaction.compact()
            total += replica.compaction.log_bytes
            if not replica.asleep:
                self._consider_hand_over(replica)
                self._sleep_if_idle(replica)
        self._retention.update(total, len(self._replicas))

    def _consider_hand_over(self, replica: Replica) -> None:
        lagging = replica.applier.stalled_for() > self._settings.lag_seconds
        replica.set_unresponsive(lagging or self.health.silent)
        unfit = lagging or replica.applier.failing or replica.applier.doubt.unfit or bool(self._inhibited_by)
        self._inhibit(replica, unfit)
        if replica.node.leading and (unfit or not replica.fit_to_lead):
            replica.hand_over()

    # Leadership

    def set_leadership_inhibited(self, leadership_inhibited: bool) -> None:
        """Inhibit leadership on behalf of the agent, or lift that."""
        self._set_inhibited(_ORDERED, leadership_inhibited)

    def set_full(self, full: bool) -> None:
        """Inhibit leadership while the disk is full."""
        self._set_inhibited(_FULL, full)

    def _set_silent(self, silent: bool) -> None:
        """Inhibit leadership while the state machine does not answer, and stop serving what no other store can lead."""
        self._set_inhibited(_SILENT, silent)
        for replica in self._replicas.values():
            replica.set_unresponsive(silent)

    def _set_inhibited(self, reason: str, holds: bool) -> None:
        if holds:
            self._inhibited_by.add(reason)
        else:
            self._inhibited_by.discard(reason)
        inhibited = bool(self._inhibited_by)
        for replica in self._replicas.values():
            if not replica.stopped:
                self._inhibit(replica, inhibited)
                if replica.node.leading and inhibited:
                    self.wake(replica)
                    replica.hand_over()

    def _inhibit(self, replica: Replica, leadership_inhibited: bool) -> None:
        replica.node.set_leadership_inhibited(leadership_inhibited)
        if replica.node.due < replica.due:
            self.reschedule(replica)

    def on_machine_connected(self) -> None:
        """Note that a state machine has connected; an earlier one's request to stop is void."""
        if _STOPPING in self._inhibited_by:
            self._set_inhibited(_STOPPING, False)

    def on_machine_disconnected(self) -> None:
        """Hand over all leaderships, because the state machine has disconnected."""
        for replica in self._replicas.values():
            self.hand_over(replica)

    def hand_over(self, replica: Replica) -> None:
        """Hand over the leadership of one group, if it is held here."""
        if not replica.stopped and replica.node.leading:
            self.wake(replica)
            replica.hand_over()

    async def hand_over_all(self) -> int:
        """Hand over all leaderships, because the state machine is stopping; return how many groups remain led here."""
        self._set_inhibited(_STOPPING, True)
        until = self._clock.now() + self._settings.hand_over_seconds
        while self._clock.now() < until:
            led = [replica for replica in self._led() if len(replica.node.conf.voters) > 1]
            if not led:
                break
            await self._clock.sleep(self._settings.tick_seconds)
            for replica in led:
                replica.hand_over()
        return len(self._led())

    def _led(self) -> list[Replica]:
        return [replica for replica in self._replicas.values() if not replica.stopped and replica.node.leading]
