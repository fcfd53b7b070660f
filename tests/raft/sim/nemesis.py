"""Fault injection."""

from __future__ import annotations

from collections.abc import Callable

from evenkeel_raft.core.quorum import has_quorum
from evenkeel_raft.core.raft_types import EMPTY_META, SnapshotMeta
from evenkeel_raft.core.rawnode import RawNode
from tests.raft.check.invariants import ViolationError
from tests.raft.sim.disk import Disk
from tests.raft.sim.host import Host
from tests.raft.sim.mix import calm
from tests.raft.sim.world import World


class Nemesis:
    """Schedules faults until stopped, and background work that continues."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng, self._clock = world.rng, world.clock
        self._active = True
        mix = world.mix
        for every, fault in (
            (mix.partition_every, self._partition),
            (mix.crash_every, self._crash),
            (mix.pause_every, self._pause),
            (mix.wipe_every, self._wipe),
            (mix.churn_every, world.admin.retarget),
            (mix.transfer_every, self._transfer),
            (mix.store_gone_every, self._detach_store),
            (mix.disk_fails_every, self._fail_disk),
        ):
            self._repeat(every, fault, fault=True)
        for every, chore in (
            (mix.compact_every, self._compact),
            (mix.quiesce_every, self._quiesce),
            (40, world.admin.steer),
            (100, world.admin.collect),
            (60, self._wake),
        ):
            self._repeat(every, chore, fault=False)

    def _repeat(self, every: int, action: Callable[[], None], *, fault: bool) -> None:
        def again() -> None:
            if self._active or not fault:
                action()
                self._clock.later(self._rng.randint(every // 2, every * 2), again)

        if every:
            self._clock.later(self._rng.randint(0, 2 * every), again)

    def stop(self) -> None:
        """End all faults: heal links, restart processes, and choose a reachable target."""
        world = self._world
        self._active = False
        world.mix = world.network.mix = calm(world.mix)
        world.network.heal()
        for host in list(world.hosts.values()):
            self._resume(host)
            self._restart(host)
        while not all(world.alive(replica) for replica in world.admin.voters | world.admin.learners):
            world.admin.retarget()

    def _any(self) -> Host | None:
        """Choose a victim, often the leader."""
        running = [host for host in self._world.hosts.values() if host.node is not None and not host.paused]
        leading = [host for host in running if host.node is not None and host.node.leading]
        chosen = leading if leading and self._rng.random() < 0.4 else running
        return self._rng.choice(chosen) if chosen else None

    def _a_while(self) -> int:
        """Return a fault's duration: less than an election timeout, several of them, or very long."""
        return self._rng.randint(5, self._rng.choice((60, 300, 300, 1500)))

    def _partition(self) -> None:
        leader = self._world.leader()
        self._world.network.partition(list(self._world.hosts), leader.replica if leader is not None else 0)
        self._clock.later(self._a_while(), self._world.network.heal)

    def _crash(self) -> None:
        one = self._any()
        running = [host for host in self._world.hosts.values() if host.node is not None]
        for host in running if one is None or self._rng.random() < 0.1 else [one]:
            host.crash()
            self._clock.later(self._a_while(), self._restart, host)

    def _restart(self, host: Host) -> None:
        if host.node is not None or host.destroyed:
            return
        if self._rng.random() < self._world.mix.store_damage and self._may_damage(host):
            host.store.damage()
        host.start()
        self._world.checked(host)

    def _may_damage(self, host: Host) -> bool:
        """Whether every configuration keeps an undamaged member that needs no entries damaged ones compacted.

        A learner is enough.
        """
        world = self._world
        damaged = [host, *(other for other in world.hosts.values() if other.damaged and not other.destroyed)]
        whole = {
            other.replica
            for other in world.hosts.values()
            if other not in damaged
            and not other.destroyed
            and all(_reaches(other.disk, bad.disk.meta) for bad in damaged)
        }
        return all(whole & set(conf.members()) for conf in world.admin.confs_in_play())

    def _pause(self) -> None:
        host = self._any()
        if host is not None:
            host.pause()
            self._clock.later(self._a_while(), self._resume, host)

    def _detach_store(self) -> None:
        host = self._any()
        if host is not None and not host.damaged:
            host.detach_store()
            self._world.checked(host)

    def _fail_disk(self) -> None:
        """Fail an fsync; the process exits some time later and recovers from the disk."""
        host = self._any()
        if host is not None:
            host.fail_disk()
            self._clock.later(self._rng.randint(0, 100), self._end_failed, host, host.life)

    def _end_failed(self, host: Host, life: int) -> None:
        if host.node is not None and host.life == life:
            host.crash()
            self._clock.later(self._a_while(), self._restart, host)

    def _resume(self, host: Host) -> None:
        if host.node is not None and host.paused:
            host.resume()

    def _wipe(self) -> None:
        world, host = self._world, self._any()
        if host is None or any(h.damaged for h in world.hosts.values()) or not world.admin.may_lose(host.replica):
            return
        host.destroy()
        if world.mix.same_id_after_wipe:
            fresh = world.hosts[host.replica] = Host(world, host.replica, host.store_id, EMPTY_META)
            fresh.start()
        elif host.replica in world.admin.voters | world.admin.learners:
            world.admin.retarget()

    def _transfer(self) -> None:
        leader = self._world.leader()
        if leader is None or leader.node is None or leader.paused:
            return
        voters = [voter for voter in leader.node.status().conf.voters if voter != leader.replica]
        if voters:
            leader.node.transfer(self._rng.choice(voters))
            leader.pump_soon()
            self._world.checked(leader)

    # Background work

    def _compact(self) -> None:
        host = self._any()
        if host is not None:
            host.compact()

    def _quiesce(self) -> None:
        """Quiesce groups, without members whose processes are down, but never without a quorum."""
        for host in self._world.hosts.values():
            node = host.node
            if node is None or host.paused or not node.leading or node.quiesced:
                continue
            if self._world.admin.keeps_awake(node):
                continue
            lost = self._lost(host, node)
            if node.quiesce(lost=lost):
                if not has_quorum(node.conf.voters, node.conf.outgoing, set(node.conf.members()) - lost):
                    raise ViolationError(f"leader {host.replica} quiesced without a quorum: {lost} are lost")
                host.without = lost
                host.pump_soon()

    def _lost(self, host: Host, node: RawNode) -> set[int]:
        """Return the members whose process is down or unreachable."""
        hosts, network = self._world.hosts, self._world.network
        others = {member: hosts[member] for member in node.conf.members() if member in hosts and member != host.replica}
        return {
            member
            for member, other in others.items()
            if other.node is None or other.paused or not network.reaches(host.replica, member)
        }

    def _wake(self) -> None:
        """Model store liveness: wake replicas whose leader's process is down, and leaders that lost their quorum.

        A returning member wakes its leader too: it may have restarted, and a learner would not report that.
        """
        for host in self._world.hosts.values():
            node = host.node
            if node is None or host.paused or not node.quiesced:
                continue
            lost = self._lost(host, node)
            if node.leading:
                back = host.without - lost
                host.without |= lost
                if back or not node.quorum_without(lost):
                    node.wake()
            elif node.leader in lost:
                node.wake()


def _reaches(disk: Disk, meta: SnapshotMeta) -> bool:
    """Whether a log reaches the beginning of another."""
    return disk.meta.index >= meta.index or disk.term(meta.index) == meta.term
