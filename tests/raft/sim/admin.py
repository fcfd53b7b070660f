"""Membership churn: drives leaders towards a target configuration and destroys unneeded replicas.

A model of the agent: it stages learners, lets them catch up, enters a joint configuration and leaves it. A leader that
is not in the target, or whose state machine is damaged or detached, hands over. It acts on every replica that believes
it leads.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from evenkeel_raft.core.confchange import apply_change, leave
from evenkeel_raft.core.errors import RefusedError
from evenkeel_raft.core.quorum import has_quorum
from evenkeel_raft.core.raft_status import Status
from evenkeel_raft.core.raft_types import (
    CONF,
    JOINT,
    LEARNER,
    REMOVE,
    SIMPLE,
    VOTER,
    Change,
    Conf,
    ConfChange,
    Entry,
    decode_conf_change,
)
from evenkeel_raft.core.rawnode import RawNode
from tests.raft.check.invariants import ViolationError

if TYPE_CHECKING:
    from tests.raft.sim.host import Host
    from tests.raft.sim.world import World


class Admin:
    """Holds the target, in place of the metastore."""

    def __init__(self, world: World, conf: Conf) -> None:
        self._world = world
        self.voters, self.learners = set(conf.voters), set(conf.learners)
        self.token = 0
        self._proposed: list[tuple[int, Conf]] = []  # by index

    def retarget(self) -> None:
        """Choose new members among the available stores."""
        world, rng = self._world, self._world.rng
        stores = list(range(world.mix.stores))
        rng.shuffle(stores)
        voters = rng.choice((world.mix.voters, world.mix.voters, 1, 2, 3))
        voters = min(voters, len(stores))
        learners = rng.choice((0, 0, 1))
        chosen = [world.replica_on(store) for store in stores[: voters + learners]]
        self.voters, self.learners = set(chosen[:voters]), set(chosen[voters:])
        self.token += 1

    def steer(self) -> None:
        """Let every leader take one step towards the target."""
        for host in list(self._world.hosts.values()):
            if host.node is not None and not host.paused and host.node.leading:
                if self.keeps_awake(host.node):
                    host.node.wake()
                with suppress(RefusedError):
                    self._step(host, host.node)
                host.pump_soon()
                self._world.checked(host)

    def keeps_awake(self, node: RawNode) -> bool:
        """Whether a leader must not quiesce because a change is due or in progress."""
        conf = node.conf
        there = set(conf.voters) == self.voters and set(conf.learners) == self.learners
        return conf.joint or conf.token != self.token or not there

    def _step(self, host: Host, node: RawNode) -> None:
        status = node.status()
        conf = status.conf
        if node.lacks_state or status.detached:
            whole = {replica for replica, peer in status.peers.items() if not peer.stateless}
            among = {*conf.voters, *conf.outgoing} - {host.replica}
            # A replica that may recover its state stays if all other candidates are stateless too.
            self._hand_over(node, among if status.detached or not whole else among & whole)
            return
        if status.newest.index != status.applied_conf.index or not status.committed_in_term:
            return
        if conf.joint:
            if host.replica in conf.voters:
                self._propose(node, leave(conf))
            else:
                self._hand_over(node, set(conf.voters))
            return
        missing = (self.voters | self.learners) - set(conf.members())
        stale = set(conf.learners) - self.voters - self.learners
        if missing or stale:
            changes = [Change(LEARNER, replica) for replica in sorted(missing)]
            changes += [Change(REMOVE, replica) for replica in sorted(stale)]
            self._propose(node, ConfChange(SIMPLE, tuple(changes), conf.token, True))
        elif set(conf.voters) != self.voters:
            self._enter_joint(host, node, status)
        elif conf.token != self.token:
            self._propose(node, ConfChange(SIMPLE, (), self.token))

    def _propose(self, node: RawNode, change: ConfChange) -> None:
        index = node.propose_conf(change)
        self._proposed.append((index, apply_change(node.status().conf, change)))

    def _enter_joint(self, host: Host, node: RawNode, status: Status) -> None:
        conf = status.conf
        hasty = self._world.rng.random() < self._world.mix.hasty_change
        if not hasty and not all(self._ready(status, replica) for replica in self.voters):
            return
        if host.replica not in self.voters and self.voters & set(conf.voters):
            self._hand_over(node, self.voters & set(conf.voters))
            return
        changes = [Change(VOTER, replica) for replica in sorted(self.voters - set(conf.voters))]
        changes += [
            Change(LEARNER if replica in self.learners else REMOVE, replica)
            for replica in sorted(set(conf.voters) - self.voters)
        ]
        self._propose(node, ConfChange(JOINT, tuple(changes), self.token))

    def _ready(self, status: Status, replica: int) -> bool:
        if replica == status.replica:
            return True
        peer = status.peers.get(replica)
        if peer is None or peer.bytes_behind is None or peer.silent_ticks is None:
            return False
        return peer.bytes_behind < 500 and peer.silent_ticks < 10

    def _hand_over(self, node: RawNode, among: set[int]) -> None:
        peers = node.status().peers
        fit = [replica for replica in sorted(among) if replica in peers and not peers[replica].snapshot_wanted]
        if fit:
            node.transfer(self._world.rng.choice(fit))

    # Removal

    def confs_in_play(self) -> list[Conf]:
        """Return every configuration that is or may come into effect at some replica.

        One that is in no log any more may still be in a message.
        """
        committed = self._world.invariants.last_committed
        self._proposed = [(index, conf) for index, conf in self._proposed if index > committed]
        found = [conf for _, conf in self._proposed]
        for host in self._world.hosts.values():
            if host.node is not None:
                raft = host.node._raft
                log, conf = raft.log, raft.confs.current
                found += _following(conf, log.entries(max(raft.confs.index, log.offset), log.last_index))
            elif not host.destroyed:
                found += _following(host.disk.meta.conf, host.disk.entries)
        return [conf for conf in found if conf.voters]

    def may_lose(self, replica: int) -> bool:
        """Whether every configuration in play keeps a live quorum without this replica."""
        left = {other for other in self._world.hosts if self._world.alive(other)} - {replica}
        return all(has_quorum(conf.voters, conf.outgoing, left) for conf in self.confs_in_play())

    def collect(self) -> None:
        """Destroy replicas that a leader no longer lists, once a quorum durably knows that."""
        leader = self._world.leader()
        if leader is None or leader.node is None:
            return
        status = leader.node.status()
        if any(host.node.term > status.term for host in self._world.hosts.values() if host.node is not None):
            return  # it may be a deposed leader
        settled = status.committed_in_term and status.newest == status.applied_conf and not status.conf.joint
        if not settled or status.commit_known < status.applied_conf.index:
            return
        self._check_known(status)
        needed = {*self.voters, *self.learners, *status.conf.members()}
        for host in self._world.hosts.values():
            if not host.destroyed and host.replica not in needed:
                host.destroy()

    def _check_known(self, status: Status) -> None:
        """Check that the commit index the leader attributes to a quorum is on that quorum's disks."""
        conf, hosts = status.conf, self._world.hosts
        knowing = {
            voter
            for voter in conf.voters
            if hosts[voter].destroyed or hosts[voter].disk.hard_state.commit >= status.applied_conf.index
        }
        if not has_quorum(conf.voters, (), knowing):
            raise ViolationError(f"only {knowing} of {conf.voters} durably know {status.applied_conf}")


def _following(conf: Conf, entries: list[Entry]) -> list[Conf]:
    found = [conf]
    for entry in entries:
        if entry.kind == CONF:
            conf = apply_change(conf, decode_conf_change(entry.data))
            found.append(conf)
    return found
