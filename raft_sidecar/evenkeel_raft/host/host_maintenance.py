"""What time asks for: ticks, sleep, compaction, and leaderships that are better held elsewhere.

Only groups that are awake cost anything, and of these only the ones with something due: all nodes share one count of
ticks, and each says at which it wants to be looked at. A follower that hears of its leader is looked at once in an
election timeout, to see that it has.

A group without work sleeps; while it does, the links between stores watch over it instead of heartbeats of its own:
when the store of its leader goes, its followers wake, and when a store comes back that was away when the group fell
asleep, its leader does. A leader whose store no longer reaches a quorum wakes as well: only awake it finds out that
nobody follows it, and steps down.
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
_ORDERED: Final = "ordered"
_DRAINING: Final = "draining"
_FULL: Final = "full"
_SILENT: Final = "silent"


class HostMaintenance:
    """Looks after all replicas of a host, until cancelled."""

    def __init__(
        self,
        replicas: Mapping[int, Replica],
        *,
        settings: HostSettings,
        allowance: LogRetention,
        clock: Clock,
        peers: Peers,
        machine: SidecarSocket,
    ) -> None:
        self.attendance = StateMachineHealth(
            replicas,
            machine=machine,
            clock=clock,
            patience=settings.lag_seconds,
            on_change=self._set_silent,
        )
        self._replicas = replicas
        self._settings = settings
        self._allowance = allowance
        self._clock = clock
        self._peers = peers
        self._awake: dict[int, Replica] = {}
        self._unwilling: set[str] = set()
        """Reasons for which nothing is to be led here."""
        self.ticks = Ticks()
        self._due: dict[int, list[Replica]] = {}
        """By tick, whom to look at then; those that were put elsewhere meanwhile stay, and are passed over."""

    async def run(self) -> None:
        """Tick; a loop that was held up ticks once, not many times at once."""
        while True:
            await self._clock.sleep(self._settings.tick_seconds)
            self.ticks.now += 1
            for replica in self._due.pop(self.ticks.now, ()):
                if replica.due == self.ticks.now:
                    self._tick(replica)
            if self.ticks.now % _SWEEP_TICKS == 0:
                await self._sweep()

    # Awake or not

    def watch(self, replica: Replica) -> None:
        """Take a replica in, or notice that it woke."""
        replica.asleep = False
        replica.busy_at = self.ticks.now
        self._awake[replica.group] = replica
        self._look_at(replica, self.ticks.now + 1)

    def forget(self, replica: Replica) -> None:
        """A replica is no more."""
        replica.due = NEVER_DUE
        self._awake.pop(replica.group, None)

    def hasten(self, replica: Replica) -> None:
        """A replica wants to be looked at earlier than it did."""
        if not replica.asleep:
            self._look_at(replica, replica.node.due)
        elif not replica.node.quiesced:
            self.watch(replica)

    def wake(self, replica: Replica) -> None:
        """Have a replica take part again."""
        self.watch(replica)
        replica.wake()

    def _look_at(self, replica: Replica, tick: int) -> None:
        replica.due = max(tick, self.ticks.now + 1)
        self._due.setdefault(replica.due, []).append(replica)

    @property
    def awake(self) -> int:
        """How many groups are awake."""
        return len(self._awake)

    def store_gone(self, store: str) -> None:
        """Wake those whose leader is not there any more; note where a member is not.

        A member that comes back may have been restarted, and a learner would never say so.
        """
        for replica in self._replicas.values():
            if not replica.asleep:
                continue
            if replica.node.leading:
                if store in map(replica.store_of, replica.node.conf.members()):
                    replica.without |= {store}
                    if not replica.node.quorum_without(self._lost(replica)):
                        self.wake(replica)
            elif replica.store_of(replica.node.leader) == store:
                self.wake(replica)

    def store_back(self, store: str) -> None:
        """Wake those that sleep without a store."""
        for replica in self._replicas.values():
            if replica.asleep and store in replica.without:
                self.wake(replica)

    def _tick(self, replica: Replica) -> None:
        replica.tick()
        if replica.stopped:
            self.forget(replica)
        elif replica.node.quiesced:
            self._fall_asleep(replica)
        elif replica.keep_awake:
            replica.changed()
            self._look_at(replica, self.ticks.now + 1)
        else:
            self._look_at(replica, replica.node.due)

    def _fall_asleep(self, replica: Replica) -> None:
        """Sleep with the leader, unless its store went after it said so: then nobody would come to wake this one."""
        leader = replica.store_of(replica.node.leader)
        if leader is not None and leader != replica.id[0] and not self._peers.connected(leader):
            self.wake(replica)
        else:
            replica.asleep = True
            self.forget(replica)

    def _may_sleep(self, replica: Replica) -> None:
        if replica.busy:
            replica.busy, replica.busy_at = False, self.ticks.now
        idle = self.ticks.now - replica.busy_at >= self._settings.sleep_after_ticks
        if not idle or replica.keep_awake or not replica.node.leading or replica.stopped:
            return
        lost = self._lost(replica)
        if replica.node.quiesce(lost=lost):
            replica.without = frozenset(lost.values())
            replica.asleep = True
            self.forget(replica)
            replica.work()

    def _lost(self, replica: Replica) -> dict[int, str]:
        """The members on stores that are not connected, with their stores."""
        members = {number: replica.store_of(number) for number in replica.node.conf.members()}
        return {
            number: store
            for number, store in members.items()
            if store is not None and store != replica.id[0] and not self._peers.connected(store)
        }

    # What can wait

    async def _sweep(self) -> None:
        self.attendance.look()
        total = 0
        for at, replica in enumerate(list(self._replicas.values())):
            if at % 100 == 99:
                await asyncio.sleep(0)
            if replica.stopped:
                continue
            if not replica.asleep or self._allowance.tight:
                replica.weigh()
                replica.compact()
            total += replica.log_bytes
            if not replica.asleep:
                self._consider_hand_over(replica)
                self._may_sleep(replica)
        self._allowance.weigh(total, len(self._replicas))

    def _consider_hand_over(self, replica: Replica) -> None:
        lagging = replica.applier.stalled_for() > self._settings.lag_seconds
        replica.set_unresponsive(lagging or self.attendance.silent)
        unfit = lagging or replica.applier.failing or replica.applier.doubt.unfit or bool(self._unwilling)
        self._set_reluctant(replica, unfit)
        if replica.node.leading and (unfit or not replica.fit_to_lead):
            replica.hand_over()

    # Leaderships

    def set_leadership_inhibited(self, leadership_inhibited: bool) -> None:
        """Lead only where nobody else does."""
        self._set(_ORDERED, leadership_inhibited)

    def set_full(self, full: bool) -> None:
        """The disk is full: nothing can be logged here."""
        self._set(_FULL, full)

    def _set_silent(self, silent: bool) -> None:
        """The state machine answers nothing: let other stores lead, and withdraw what nobody else can lead."""
        self._set(_SILENT, silent)
        for replica in self._replicas.values():
            replica.set_unresponsive(silent)

    def _set(self, reason: str, holds: bool) -> None:
        if holds:
            self._unwilling.add(reason)
        else:
            self._unwilling.discard(reason)
        unwilling = bool(self._unwilling)
        for replica in self._replicas.values():
            if not replica.stopped:
                self._set_reluctant(replica, unwilling)
                if replica.node.leading and unwilling:
                    self.wake(replica)
                    replica.hand_over()

    def _set_reluctant(self, replica: Replica, leadership_inhibited: bool) -> None:
        replica.node.set_leadership_inhibited(leadership_inhibited)
        if replica.node.due < replica.due:
            self.hasten(replica)

    def machine_here(self) -> None:
        """A state machine is there; what its predecessor wanted is over."""
        if _DRAINING in self._unwilling:
            self._set(_DRAINING, False)

    def machine_gone(self) -> None:
        """Nobody can be served from here: let others lead at once."""
        for replica in self._replicas.values():
            self.hand_over(replica)

    def hand_over(self, replica: Replica) -> None:
        """Let another lead at once, if this one does."""
        if not replica.stopped and replica.node.leading:
            self.wake(replica)
            replica.hand_over()

    async def drain(self) -> int:
        """The state machine is about to go: hand over everything; returns how many groups nobody took in time."""
        self._set(_DRAINING, True)
        until = self._clock.now() + self._settings.drain_seconds
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
