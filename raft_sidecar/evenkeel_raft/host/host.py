"""All replicas of one store, as the agent drives them.

    host = await Host.open(directory, store=..., cluster=..., socket=..., listen=...)
    ...                              the agent calls `evenkeel_raft.shared.raft_groups.Groups`
    await host.failed                raises when the disk failed or a bug was found; end the process then
    await host.close()

A host runs what its volume holds, with or without a metastore: it remembers the last known addresses of its peers.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from random import Random
from typing import Final, Self

from evenkeel.protocol.group_configuration import Configuration
from evenkeel.protocol.keys import group_number
from evenkeel.protocol.leader_decision import GroupView
from evenkeel.protocol.records import ReplicaId, StoreSettings
from evenkeel.protocol.replica_decision import Start
from evenkeel.runtime.clock import Clock, SystemClock
from evenkeel.versions import VersionRange
from evenkeel.wire.sidecar_socket import SidecarSocket
from evenkeel_raft.core.errors import RefusedError
from evenkeel_raft.errors import DiskFullError, LogError
from evenkeel_raft.host.host_context import BackgroundTasks, HostContext, HostCounters, HostEnvironment
from evenkeel_raft.host.host_maintenance import HostMaintenance
from evenkeel_raft.host.host_settings import HostSettings
from evenkeel_raft.host.host_status import HostStatus
from evenkeel_raft.host.log_retention import LogRetention
from evenkeel_raft.host.membership_checks import MembershipChecks
from evenkeel_raft.host.peer_handler import PeerHandler
from evenkeel_raft.host.raft_replica import Replica
from evenkeel_raft.host.ready_queue import ReadyQueue
from evenkeel_raft.host.received_snapshots import find_received_snapshots
from evenkeel_raft.host.replica_set import ReplicaSet
from evenkeel_raft.host.replica_views import report, view
from evenkeel_raft.host.snapshot_slots import SnapshotSlots
from evenkeel_raft.host.snapshot_throttles import SnapshotThrottles
from evenkeel_raft.host.state_machine_handler import StateMachineHandler
from evenkeel_raft.host.volume_files import LOG_DIRECTORY, CachedFile, read_version, write_version
from evenkeel_raft.log.log_disk import FileDisk
from evenkeel_raft.log.log_rebuild import Recovered
from evenkeel_raft.log.log_records import Metastore
from evenkeel_raft.log.log_writer import LogWriter
from evenkeel_raft.log.shared_log import LogSettings, SharedLog
from evenkeel_raft.net.clock_skew import clock_ahead
from evenkeel_raft.net.peer_tls import TlsFiles
from evenkeel_raft.net.peers import Peers
from evenkeel_raft.shared.identity import Address, Identity, LinkSettings
from evenkeel_raft.shared.raft_configurations import change_to
from evenkeel_raft.shared.raft_groups import GroupReport, MetastoreMark, Partition

__all__ = ["Host"]

log = logging.getLogger(__name__)

_PEERS_FILE: Final = "peers.json"


class Host:
    """Implements `evenkeel_raft.shared.raft_groups.Groups`."""

    def __init__(self, environment: HostEnvironment, *, log: SharedLog, recovered: Recovered, version: int) -> None:
        self.identity = environment.identity
        self.settings = environment.settings
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.full = ""
        """Why nothing can be logged at the moment; empty if the log accepts records."""
        self.on_change: Callable[[Partition], None] = lambda _: None
        self.version = self._persisted_version = version
        self._environment = environment
        self._log = log
        self._writing = False
        self._addresses = CachedFile(environment.directory / _PEERS_FILE, dict[str, Address])
        mark = recovered.metastore
        self._mark = None if mark is None else MetastoreMark(mark.cluster, mark.revision, mark.adopted)
        replicas: dict[int, Replica] = {}
        self._make_parts(replicas)
        self._replicas = ReplicaSet(
            replicas,
            environment=environment,
            context=self._context,
            maintenance=self._maintenance,
            recovered=recovered,
            on_change=lambda replica: self.on_change(replica.partition),
        )
        self.status = HostStatus(replicas, log=log, context=self._context, maintenance=self._maintenance)
        self._machine.set_cluster_version(version)
        self.peers.set_version(version)

    def _make_parts(self, replicas: dict[int, Replica]) -> None:
        """Create the parts around the replicas and connect them with each other."""
        environment, settings, clock = self._environment, self.settings, self._environment.clock
        self.counters = HostCounters()
        tasks, retention = BackgroundTasks(self.failed), LogRetention(settings)
        self._machine_handler = StateMachineHandler(replicas, tasks=tasks)
        self._peer_handler = PeerHandler(replicas, counters=self.counters, inbox=environment.inbox)
        self._machine = SidecarSocket(
            environment.socket, volume=self.identity.volume, handler=self._machine_handler, clock=clock
        )
        self.peers = _make_peers(environment, self._peer_handler, replicas)
        slots = SnapshotSlots(settings.snapshots_at_once)
        self._throttles = SnapshotThrottles(environment.directory, settings, budget=self.peers.budget, slots=slots)
        self._maintenance = HostMaintenance(
            replicas, settings=settings, retention=retention, clock=clock, peers=self.peers, machine=self._machine
        )
        self._membership_checks = MembershipChecks(
            replicas, peers=self.peers, clock=clock, timeout=settings.election_seconds
        )
        self._machine_handler.maintenance = self._peer_handler.maintenance = self._maintenance
        self._peer_handler.membership_checks = self._membership_checks
        writer = LogWriter(self._log, on_full=self._on_full, on_failed=self._on_failed)
        self._context = HostContext(
            settings=settings,
            retention=retention,
            clock=clock,
            rng=environment.rng,
            writer=writer,
            peers=self.peers,
            machine=self._machine,
            tasks=tasks,
            # Answers to clients leave first. The second flush of peers acknowledges what the log wrote immediately.
            ready_queue=ReadyQueue(
                on_turn=(self._machine.flush, self.peers.flush, writer.flush, self.peers.flush),
                on_due=self._maintenance.reschedule,
            ),
            counters=self.counters,
            outbox=environment.directory / "outbox",
            snapshot_slots=slots,
        )

    # Start and stop

    @classmethod
    async def open(
        cls,
        directory: Path,
        *,
        store: str,
        cluster: str,
        socket: Path,
        listen: tuple[str, int],
        settings: HostSettings | None = None,
        log_settings: LogSettings | None = None,
        link: LinkSettings | None = None,
        tls: TlsFiles | None = None,
        clock: Clock | None = None,
        rng: Random | None = None,
        wall_clock: Callable[[], float] = time.time,
    ) -> Self:
        """Recover the replicas in a directory and run them.

        `wall_clock` returns seconds since 1970, to compare with other stores; `clock` is used for everything else.
        """
        version = read_version(directory)
        shared_log, recovered = SharedLog.open(FileDisk(directory / LOG_DIRECTORY), log_settings)
        try:
            environment = HostEnvironment(
                directory=directory,
                identity=Identity(cluster, store, recovered.volume),
                socket=socket,
                settings=settings or HostSettings(),
                link=link or LinkSettings(),
                tls=tls,
                clock=clock or SystemClock(),
                rng=rng or Random(),
                wall_clock=wall_clock,
            )
            host = cls(environment, log=shared_log, recovered=recovered, version=version)
        except BaseException:
            shared_log.close(clean=False)
            raise
        try:
            await host._start(*listen)
        except BaseException:
            await host.close()
            raise
        return host

    async def _start(self, address: str, port: int) -> None:
        shutil.rmtree(self._context.outbox, ignore_errors=True)
        find_received_snapshots(self._environment.inbox, self._replicas.received_snapshots_of)
        await self.peers.sweep_snapshots(self._replicas.holds)
        self._context.writer.start()
        self._writing = True
        self._replicas.start_all()
        self.port = await self.peers.start(address, port)
        self.peers.set_peers(self._addresses.value or {})
        await self._machine.start()
        self._context.tasks.spawn(self._maintenance.run())

    async def close(self) -> None:
        """Stop; everything acknowledged is on the disk."""
        for replica in self._replicas.by_group.values():
            replica.stop()
        await self._machine.close()
        await self._context.tasks.close()
        await self.peers.close()
        if self._writing:
            await self._context.writer.close()
        else:
            self._log.close(clean=False)

    def _on_full(self, error: DiskFullError | None) -> None:
        self.full = "" if error is None else str(error)
        self._machine_handler.full = error is not None
        self._maintenance.set_full(error is not None)

    def _on_failed(self, error: LogError) -> None:
        if not self.failed.done():
            # The caller prints one line; only this record has the traceback of a bug.
            bug = None if isinstance(error.__cause__, OSError) else error.__cause__
            log.error("the log failed; ending this process: %s", error, exc_info=bug)
            self.failed.set_exception(error)

    # Metastore, peers and limits

    def metastore_mark(self) -> MetastoreMark | None:
        """Return the metastore that this volume followed last."""
        return self._mark

    async def save_metastore_mark(self, mark: MetastoreMark) -> None:
        """Make the mark durable."""
        await self._context.writer.write(Metastore(mark.cluster, mark.revision, mark.adopted))
        self._mark = mark

    def set_peers(self, peers: Mapping[str, Address]) -> None:
        """Replace the set of peers, also for the next start."""
        others = {store: address for store, address in peers.items() if store != self.identity.store}
        self._addresses.write(others)
        self.peers.set_peers(others)

    def set_version(self, version: int) -> None:
        """Use this cluster version, also after a restart."""
        if self._persisted_version != version and write_version(
            self._environment.directory, version, volume=self.identity.volume
        ):
            self._persisted_version = version
        self.version = version
        self._machine.set_cluster_version(version)
        self.peers.set_version(version)

    def machine_supports(self) -> VersionRange | None:
        """Return the cluster versions that the state machine supports; None while it is not connected."""
        return self._machine_handler.supports

    @property
    def on_state_machine(self) -> Callable[[], None]:
        """Called when a state machine has connected or disconnected."""
        return self._machine_handler.on_state_machine

    @on_state_machine.setter
    def on_state_machine(self, called: Callable[[], None]) -> None:
        self._machine_handler.on_state_machine = called

    def limit_copies(self, limits: Mapping[str, float]) -> None:
        """Set the rate limits of tables, in bytes per second."""
        self.peers.tables.set_limits(limits)

    def throttle(self, settings: StoreSettings | None) -> None:
        """Set the throttles of the StoreCluster."""
        self._throttles.apply(settings)

    # Replicas

    def running(self) -> Mapping[Partition, ReplicaId]:
        """Return the replicas of this store."""
        return self._replicas.running

    def newest_held(self, partition: Partition) -> int:
        """Return the highest replica id that this volume ever held of a group."""
        return self._replicas.newest_held(partition)

    async def start(self, partition: Partition, start: Start) -> None:
        """Start a replica."""
        self._peer_handler.deliver_early(await self._replicas.create(partition, start))

    async def destroy(self, partition: Partition, replica: ReplicaId) -> None:
        """Delete a replica and its data."""
        await self._replicas.destroy(partition, replica)

    def keep_awake(self, partition: Partition, awake: bool) -> None:
        """Prevent a group from falling asleep, or allow it again."""
        replica = self._replicas.get(partition)
        if replica is not None and replica.keep_awake != awake:
            replica.keep_awake = awake
            if awake and not replica.stopped:
                self._maintenance.wake(replica)

    async def ask_leader(self, partition: Partition, replica: ReplicaId, stores: Iterable[str]) -> bool:
        """Return whether a leader confirms that the replica is not a member."""
        return await self._membership_checks.ask(group_number(*partition), replica[0], replica[1], of=stores)

    # Leadership

    def leading(self, partition: Partition) -> GroupView | None:
        """Return the leader's view of a group."""
        replica = self._replicas.get(partition)
        return None if replica is None else view(replica)

    def led_elsewhere(self, partition: Partition) -> bool:
        """Return whether the local replica knows a leader on another store."""
        replica = self._replicas.get(partition)
        return replica is not None and not replica.stopped and replica.node.leader not in (0, replica.node.replica)

    def leading_term(self, partition: Partition) -> int:
        """Return the term in which the local replica leads, whether or not it can serve; 0 if it does not lead."""
        replica = self._replicas.get(partition)
        if replica is None or replica.stopped or not replica.node.leading:
            return 0
        return replica.node.term

    def propose(self, partition: Partition, configuration: Configuration) -> bool:
        """Propose a configuration; return whether it was appended to the log."""
        replica = self._replicas.get(partition)
        if replica is None or replica.stopped:
            return False
        try:
            replica.node.propose_conf(change_to(configuration, replica.node.conf))
        except RefusedError:
            return False
        self._context.ready_queue.enqueue(replica)
        return True

    def transfer(self, partition: Partition, to: ReplicaId) -> bool:
        """Hand leadership over; return whether the transfer started."""
        replica = self._replicas.get(partition)
        return replica is not None and replica.transfer_to(to)

    def set_leadership_inhibited(self, leadership_inhibited: bool) -> None:
        """Hand over all leaderships and lead only groups without another candidate, or lift that."""
        self._maintenance.set_leadership_inhibited(leadership_inhibited)

    # Reports

    def received(self) -> tuple[int, float]:
        """Return the bytes of received snapshots and the seconds that receiving took."""
        return self.peers.received.bytes, self.peers.received.seconds

    def reports(self) -> Mapping[Partition, GroupReport]:
        """Return the report of each replica."""
        return {replica.partition: report(replica) for replica in self._replicas.by_group.values()}

    def clock_ahead(self) -> int:
        """Return how many seconds this store's wall clock is ahead of most stores'; 0 if it is close."""
        return clock_ahead(self.peers.skews().values())


def _make_peers(environment: HostEnvironment, handler: PeerHandler, replicas: Mapping[int, Replica]) -> Peers:
    def table_of(group: int) -> str:
        replica = replicas.get(group)
        return "" if replica is None else replica.partition.table

    return Peers(
        environment.identity,
        handler=handler,
        inbox=environment.inbox,
        bytes_per_second=environment.settings.bytes_per_second,
        table_of=table_of,
        tls=environment.tls,
        settings=environment.link,
        clock=environment.clock,
        rng=environment.rng,
        wall_clock=environment.wall_clock,
    )
