"""A simulated group in virtual time, created from one seed."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from evenkeel_raft.core.raft_messages import Message
from evenkeel_raft.core.raft_types import EMPTY_META, Conf, SnapshotMeta, genesis
from evenkeel_raft.core.rawnode import RawNode
from tests.raft.check.invariants import Invariants
from tests.raft.sim.admin import Admin
from tests.raft.sim.clients import Clients
from tests.raft.sim.clock import Clock
from tests.raft.sim.host import Host
from tests.raft.sim.mix import Mix, draw
from tests.raft.sim.network import Network
from tests.raft.sim.store import State


class World:
    """All parts of one simulation."""

    def __init__(self, seed: int, *, mix: Mix | None = None, make_node: Callable[..., RawNode] = RawNode) -> None:
        self.rng = Random(seed)
        self.mix = mix or draw(seed)
        self.make_node = make_node
        self.clock = Clock()
        self.network = Network(self.clock, self.rng, self.mix, self._deliver)
        self.hosts: dict[int, Host] = {}
        self._on_store: dict[int, int] = {}
        replicas = list(range(1, self.mix.voters + self.mix.learners + 1))
        replicas = replicas[: self.mix.stores]
        conf = Conf(voters=tuple(replicas[: self.mix.voters]), learners=tuple(replicas[self.mix.voters :]))
        start = genesis(conf)
        self.invariants = Invariants(start, self._holds)
        self.admin = Admin(self, conf)
        self.clients = Clients(self, self.mix.clients)
        for store, _ in enumerate(replicas):
            self.add(store, start)

    def add(self, store: int, meta: SnapshotMeta) -> Host:
        """Start a replica on a store."""
        replica = len(self.hosts) + 1
        host = self.hosts[replica] = Host(self, replica, store, meta)
        self._on_store[store] = replica
        host.start()
        return host

    def replica_on(self, store: int) -> int:
        """Return the live replica of a store, created empty if needed."""
        replica = self._on_store.get(store)
        if replica is None or self.hosts[replica].destroyed:
            return self.add(store, EMPTY_META).replica
        return replica

    # Queries

    def alive(self, replica: int) -> bool:
        return replica in self.hosts and not self.hosts[replica].destroyed

    def leader(self) -> Host | None:
        """Return the leader of the newest term that has one; a removed replica may be in a later term."""
        leading = [host for host in self.hosts.values() if host.node is not None and host.node.leading]
        return max(leading, key=lambda host: host.node.term if host.node else 0, default=None)

    def some_host(self) -> Host | None:
        """Return the host that a client calls: mostly a leader, sometimes any other."""
        hosts = [host for host in self.hosts.values() if host.node is not None]
        leading = [host for host in hosts if host.node and host.node.leading]
        if leading and self.rng.random() < 0.7:
            return self.rng.choice(leading)
        return self.rng.choice(hosts) if hosts else None

    def last_value(self, key: str) -> int:
        """Return a value that a compare-and-set may match."""
        newest = max(self.hosts.values(), key=lambda host: host.store.applied)
        return newest.store.state.values.get(key, 0)

    def _holds(self, replica: int, index: int, term: int) -> bool:
        host = self.hosts[replica]
        return host.destroyed or host.disk.meta.index >= index or host.disk.term(index) == term

    def checked(self, host: Host) -> None:
        """Check the invariants of a host after an event."""
        if host.node is not None:
            self.invariants.check(host.replica, host.node)

    def _deliver(self, message: Message, state: State | None) -> None:
        host = self.hosts.get(message.receiver)
        if host is not None and host.node is not None:
            host.later(0, host.receive, message, state)
