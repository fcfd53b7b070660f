"""All replicas of one store, and what the agent asks of them.

    host = await Host.open(directory, store=..., cluster=..., socket=..., listen=...)
    ...                              the agent drives it, see `evenkeel_raft.shared.raft_groups.Groups`
    await host.failed                never ends well: the disk failed, or there is a bug; end the process
    await host.close()

A host runs what its disk holds, metastore or not: it remembers where its peers were when it last heard of them.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Final, Self

import msgspec

from evenkeel.errors import DisconnectedError, InvalidInputError
from evenkeel.protocol.group_configuration import Configuration
from evenkeel.protocol.keys import group_number
from evenkeel.protocol.leader_decision import GroupView
from evenkeel.protocol.records import ReplicaId, StoreSettings
from evenkeel.protocol.replica_decision import Start
from evenkeel.runtime.clock import Clock, SystemClock
from evenkeel.runtime.directories import replace_file
from evenkeel.versions import FIRST, VersionRange
from evenkeel.wire.framing import Drops
from evenkeel.wire.sidecar_socket import SidecarSocket
from evenkeel_raft.core.errors import InvariantError, RefusedError
from evenkeel_raft.core.raft_types import EMPTY_META, HardState, genesis
from evenkeel_raft.core.rawnode import RawNode
from evenkeel_raft.errors import CorruptLogError, DiskFullError, LogError, WrongVolumeError
from evenkeel_raft.host.cluster_version_file import note_version, read_version
from evenkeel_raft.host.host_context import BackgroundTasks, HostContext, HostCounters
from evenkeel_raft.host.host_maintenance import HostMaintenance
from evenkeel_raft.host.host_settings import HostSettings
from evenkeel_raft.host.log_retention import LogRetention
from evenkeel_raft.host.membership_checks import MembershipChecks
from evenkeel_raft.host.peer_handler import PeerHandler
from evenkeel_raft.host.raft_replica import Replica
from evenkeel_raft.host.ready_queue import ReadyQueue
from evenkeel_raft.host.received_snapshots import ReceivedSnapshots, find_received_snapshots
from evenkeel_raft.host.replica_label import ReplicaLabel, decode_label, encode_label
from evenkeel_raft.host.replica_views import ReplicaStatus, describe, is_behind, report, view
from evenkeel_raft.host.snapshot_slots import SnapshotSlots
from evenkeel_raft.host.snapshot_throttles import SnapshotThrottles
from evenkeel_raft.host.state_machine_handler import StateMachineHandler
from evenkeel_raft.log.log_disk import FileDisk
from evenkeel_raft.log.log_rebuild import Recovered, RecoveredGroup
from evenkeel_raft.log.log_records import Append, Created, Destroyed, Metastore
from evenkeel_raft.log.log_writer import LogWriter, RoundTimes
from evenkeel_raft.log.shared_log import LogSettings, LogStats, SharedLog
from evenkeel_raft.net.clock_skew import clock_ahead
from evenkeel_raft.net.peer_tls import TlsFiles
from evenkeel_raft.net.peers import Peers
from evenkeel_raft.shared.identity import Address, Identity, LinkSettings
from evenkeel_raft.shared.raft_configurations import change_to, conf_of, member
from evenkeel_raft.shared.raft_groups import GroupReport, MetastoreMark, Partition

__all__ = ["Host"]

log = logging.getLogger(__name__)

_PEERS_FILE: Final = "peers.json"
_LOG_DIRECTORY: Final = "log"
_PER_TURN: Final = 100
_NOTHING: Final = RecoveredGroup(0, 0, b"", EMPTY_META, HardState(), [])


class Host:
    """Implements `evenkeel_raft.shared.raft_groups.Groups`."""

    def __init__(
        self,
        directory: Path,
        *,
        identity: Identity,
        log: SharedLog,
        recovered: Recovered,
        socket: Path,
        settings: HostSettings,
        link: LinkSettings,
        tls: TlsFiles | None,
        clock: Clock,
        rng: Random,
        wall: Callable[[], float],
    ) -> None:
        """`wall` tells seconds since 1970, for other stores to compare with; `clock` everything else."""
        self.identity = identity
        self.settings = settings
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.tally = HostCounters()
        self.full = ""
        """Why nothing can be logged at the moment, if so."""
        self.on_change: Callable[[Partition], None] = lambda _: None
        self._directory = directory
        self._addresses = _read_peers(directory)
        self._addresses_noted = True
        self.version = FIRST
        self._version_noted = FIRST
        self._log = log
        self._writing = False
        self._rng = rng
        self._replicas: dict[int, Replica] = {}
        self._running: dict[Partition, ReplicaId] = {}
        self._retired = dict(recovered.retired)
        mark = recovered.metastore
        self._mark = None if mark is None else MetastoreMark(mark.cluster, mark.revision, mark.adopted)
        inbox = directory / "inbox"
        tasks = BackgroundTasks(self.failed)
        self._machine_side = StateMachineHandler(self._replicas, tasks=tasks)
        self._peer_side = PeerHandler(self._replicas, tally=self.tally, inbox=inbox)
        self._machine = SidecarSocket(socket, volume=identity.volume, handler=self._machine_side, clock=clock)
        self._peers = Peers(
            identity,
            handler=self._peer_side,
            inbox=inbox,
            bytes_per_second=settings.bytes_per_second,
            table_of=self._table_of,
            tls=tls,
            settings=link,
            clock=clock,
            rng=rng,
            wall=wall,
        )
        slots = SnapshotSlots(settings.snapshots_at_once)
        self._throttles = SnapshotThrottles(directory, settings, budget=self._peers.budget, slots=slots)
        allowance = LogRetention(settings)
        self._upkeep = HostMaintenance(
            self._replicas,
            settings=settings,
            allowance=allowance,
            clock=clock,
            peers=self._peers,
            machine=self._machine,
        )
        self._inquiries = MembershipChecks(
            self._replicas, peers=self._peers, clock=clock, patience=settings.election_seconds
        )
        self._machine_side.upkeep = self._peer_side.upkeep = self._upkeep
        self._peer_side.inquiries = self._inquiries
        writer = LogWriter(log, on_full=self._on_full, on_failed=self._on_failed)
        self._ports = HostContext(
            settings=settings,
            allowance=allowance,
            clock=clock,
            rng=rng,
            writer=writer,
            peers=self._peers,
            machine=self._machine,
            tasks=tasks,
            # Whoever waits is answered first. What the log has done at once is acknowledged at once.
            pump=ReadyQueue(
                on_turn=(self._machine.flush, self._peers.flush, writer.flush, self._peers.flush),
                on_due=self._upkeep.hasten,
            ),
            tally=self.tally,
            outbox=directory / "outbox",
            snapshot_slots=slots,
        )
        for group, found in recovered.groups.items():
            self._recover(group, found)

    # Life

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
        wall: Callable[[], float] = time.time,
    ) -> Self:
        """Recover what the directory holds and run it."""
        version = read_version(directory)
        shared, recovered = SharedLog.open(FileDisk(directory / _LOG_DIRECTORY), log_settings)
        try:
            host = cls(
                directory,
                identity=Identity(cluster, store, recovered.volume),
                log=shared,
                recovered=recovered,
                socket=socket,
                settings=settings or HostSettings(),
                link=link or LinkSettings(),
                tls=tls,
                clock=clock or SystemClock(),
                rng=rng or Random(),
                wall=wall,
            )
        except BaseException:
            shared.close(clean=False)
            raise
        host.version = host._version_noted = version
        host._machine.set_cluster_version(version)
        host._peers.set_version(version)
        try:
            await host._start(*listen)
        except BaseException:
            await host.close()
            raise
        return host

    async def _start(self, address: str, port: int) -> None:
        shutil.rmtree(self._ports.outbox, ignore_errors=True)
        find_received_snapshots(self._directory / "inbox", self._arrivals_of)
        await self._peers.sweep_snapshots(self._holds)
        self._ports.writer.start()
        self._writing = True
        for replica in self._replicas.values():
            self._begin(replica)
        self.port = await self._peers.start(address, port)
        self._peers.set_peers(self._addresses)
        await self._machine.start()
        self._ports.tasks.spawn(self._upkeep.run())

    async def close(self) -> None:
        """Stop; what was acknowledged is on the disk."""
        for replica in self._replicas.values():
            replica.stop()
        await self._machine.close()
        await self._ports.tasks.close()
        await self._peers.close()
        if self._writing:
            await self._ports.writer.close()
        else:
            self._log.close(clean=False)

    def _arrivals_of(self, group: int, number: int, index: int) -> ReceivedSnapshots | None:
        """Whose snapshot it is that arrived before this process began; only one that the log begins at is of use."""
        of_use = self._holds(group, number) and index == self._replicas[group].node.offset
        return self._replicas[group].applier.arrivals if of_use else None

    def _holds(self, group: int, number: int) -> bool:
        """Whether a replica is here, by its number."""
        replica = self._replicas.get(group)
        return replica is not None and member(replica.id) == number

    def _on_full(self, error: DiskFullError | None) -> None:
        self.full = "" if error is None else str(error)
        self._machine_side.full = error is not None
        self._upkeep.set_full(error is not None)

    def _on_failed(self, error: LogError) -> None:
        if not self.failed.done():
            # Whoever runs the host prints one line; only the log can say where a bug was met.
            bug = None if isinstance(error.__cause__, OSError) else error.__cause__
            log.error("the log failed, and this process ends: %s", error, exc_info=bug)
            self.failed.set_exception(error)

    # Replicas

    def _recover(self, group: int, found: RecoveredGroup) -> None:
        label, me = decode_label(found.label), self.identity
        where = f"{self._directory}: the log holds a replica of {label.table}/{label.partition}"
        if label.store != me.store:
            raise WrongVolumeError(
                f"{where} that belongs to store {label.store}, and this is store {me.store}: mount the disk that "
                "belongs here, or begin with an empty directory"
            )
        if label.cluster not in ("", me.cluster):
            raise WrongVolumeError(
                f"{where} that belongs to {label.cluster}, and this store to {me.cluster}: mount the disk that belongs "
                "here, or begin with an empty directory"
            )
        try:
            self._add(group, label, found)
        except (InvariantError, ValueError) as error:
            raise CorruptLogError(
                f"{where} that cannot be: {error}; replace this store's volume, so that its replicas are filled anew",
                file="log",
                offset=0,
            ) from error

    def _add(self, group: int, label: ReplicaLabel, found: RecoveredGroup) -> Replica:
        partition, id_ = Partition(label.table, label.partition), (label.store, found.replica)
        meta = found.meta
        if label.genesis is not None and meta == EMPTY_META:
            meta = genesis(label.genesis)
        node = RawNode(
            group=group,
            replica=member(id_),
            generation=found.generation,
            rng=Random(self._rng.getrandbits(64)),
            settings=self.settings.raft,
            ticks=self._upkeep.ticks,
            meta=meta,
            hard_state=found.hard_state,
            entries=found.entries,
            applied=None,
        )
        replica = Replica(
            partition,
            id_,
            group=group,
            generation=found.generation,
            node=node,
            ports=self._ports,
            changed=self._note_change,
        )
        self._replicas[group] = replica
        self._running[partition] = id_
        if meta is not found.meta:
            replica.unwritten = Append(group, found.replica, found.generation, meta, [], None)
        return replica

    def _begin(self, replica: Replica) -> None:
        """Let a replica take part."""
        if replica.unwritten is not None:
            self._ports.writer.submit(replica.unwritten)
            replica.unwritten = None
        self._upkeep.watch(replica)
        self._ports.pump.stir(replica)
        if self._machine.connected:
            replica.applier.open()

    def _note_change(self, replica: Replica) -> None:
        self.on_change(replica.partition)

    def _replica(self, partition: Partition) -> Replica | None:
        if partition not in self._running:
            return None
        return self._replicas[group_number(*partition)]

    # What the agent asks

    def running(self) -> Mapping[Partition, ReplicaId]:
        """The replicas of this store."""
        return self._running

    def newest_held(self, partition: Partition) -> int:
        """The highest replica id this volume ever held of a group."""
        group = group_number(*partition)
        replica = self._replicas.get(group)
        return replica.id[1] if replica is not None else self._retired.get(group, 0)

    def remembered(self) -> MetastoreMark | None:
        """The metastore this volume followed so far."""
        return self._mark

    async def remember(self, mark: MetastoreMark) -> None:
        """Make the mark durable."""
        await self._ports.writer.write(Metastore(mark.cluster, mark.revision, mark.adopted))
        self._mark = mark

    def set_peers(self, peers: Mapping[str, Address]) -> None:
        """Know these stores and no others, also after a restart."""
        others = {store: address for store, address in peers.items() if store != self.identity.store}
        if others != self._addresses or not self._addresses_noted:
            self._addresses = others
            self._note_addresses()
        self._peers.set_peers(others)

    def set_version(self, version: int) -> None:
        """Work by this cluster version, also after a restart."""
        if self._version_noted != version:
            log_directory, volume = self._directory / _LOG_DIRECTORY, self.identity.volume
            if note_version(self._directory, version, log_directory=log_directory, volume=volume):
                self._version_noted = version
        self.version = version
        self._machine.set_cluster_version(version)
        self._peers.set_version(version)

    def machine_supports(self) -> VersionRange | None:
        """The cluster versions that the state machine can work with."""
        return self._machine_side.supports

    @property
    def on_machine(self) -> Callable[[], None]:
        """Called when a state machine has connected or gone."""
        return self._machine_side.on_machine

    @on_machine.setter
    def on_machine(self, called: Callable[[], None]) -> None:
        self._machine_side.on_machine = called

    def limit_copies(self, limits: Mapping[str, float]) -> None:
        """Keep to the limits of tables, from now on."""
        self._peers.tables.set_limits(limits)

    def throttle(self, settings: StoreSettings | None) -> None:
        """Keep to the throttles of the StoreCluster, from now on."""
        self._throttles.apply(settings)

    @property
    def snapshots_at_once(self) -> int:
        """How many snapshots are made and sent at the same time."""
        return self._ports.snapshot_slots.limit

    def _table_of(self, group: int) -> str:
        replica = self._replicas.get(group)
        return "" if replica is None else replica.partition.table

    def _note_addresses(self) -> None:
        """Write down where peers are, as far as the disk allows: a full one must not keep us from reaching them."""
        noted = self._addresses_noted
        try:
            replace_file(self._directory / _PEERS_FILE, msgspec.json.encode(self._addresses))
            self._addresses_noted = True
        except OSError as error:
            self._addresses_noted = False
            if noted:
                log.warning("where the other stores are cannot be noted in %s: %s", _PEERS_FILE, error)

    async def start(self, partition: Partition, start: Start) -> None:
        """Start a replica."""
        group, peer = group_number(*partition), start.peer
        if group in self._replicas:
            other = self._replicas[group]
            raise InvalidInputError(f"{partition} and {other.partition} share the group number {group}")
        first = None if start.configuration is None else conf_of(start.configuration.peers)
        label = ReplicaLabel(*partition, peer.store, first, self.identity.cluster)
        await self._ports.writer.write(Created(group, peer.replica, 0, encode_label(label)))
        found = msgspec.structs.replace(_NOTHING, replica=peer.replica)
        replica = self._add(group, label, found)
        self._begin(replica)
        self._peer_side.begun(replica)

    async def destroy(self, partition: Partition, replica: ReplicaId) -> None:
        """End a replica: the state machine's data first, for only the log remembers that there is any."""
        found = self._replica(partition)
        if found is None or found.id != replica:
            return
        if not self._machine.connected:
            raise DisconnectedError(f"{partition}: the state machine is not there to delete its data")
        found.stop()
        await self._machine.destroy(found.group, replica[1])
        await self._ports.writer.write(Destroyed(found.group, replica[1]))
        self._upkeep.forget(found)
        del self._running[partition], self._replicas[found.group]
        self._retired[found.group] = replica[1]
        found.applier.arrivals.drop()
        await self._peers.cancel_snapshot(found.group, member(replica))

    def leading(self, partition: Partition) -> GroupView | None:
        """The group as its leader sees it."""
        replica = self._replica(partition)
        return None if replica is None else view(replica)

    def led_elsewhere(self, partition: Partition) -> bool:
        """Whether this store's replica knows of a leader on another store."""
        replica = self._replica(partition)
        return replica is not None and not replica.stopped and replica.node.leader not in (0, replica.node.replica)

    def leading_term(self, partition: Partition) -> int:
        """The term in which this store's replica leads, whether or not it can serve; 0 where it does not lead."""
        replica = self._replica(partition)
        if replica is None or replica.stopped or not replica.node.leading:
            return 0
        return replica.node.term

    def propose(self, partition: Partition, configuration: Configuration) -> bool:
        """Log a configuration."""
        replica = self._replica(partition)
        if replica is None or replica.stopped:
            return False
        try:
            replica.node.propose_conf(change_to(configuration, replica.node.conf))
        except RefusedError:
            return False
        self._ports.pump.stir(replica)
        return True

    def transfer(self, partition: Partition, to: ReplicaId) -> bool:
        """Hand leadership over."""
        replica = self._replica(partition)
        return replica is not None and replica.transfer_to(to)

    def set_leadership_inhibited(self, leadership_inhibited: bool) -> None:
        """Lead only where nobody else does."""
        self._upkeep.set_leadership_inhibited(leadership_inhibited)

    def keep_awake(self, partition: Partition, awake: bool) -> None:
        """Let the group not fall asleep."""
        replica = self._replica(partition)
        if replica is not None and replica.keep_awake != awake:
            replica.keep_awake = awake
            if awake and not replica.stopped:
                self._upkeep.wake(replica)

    async def ask_leader(self, partition: Partition, replica: ReplicaId, stores: Iterable[str]) -> bool:
        """Whether a leader says that the replica is no member."""
        group = group_number(*partition)
        return await self._inquiries.ask(group, replica[0], replica[1], of=stores)

    def received(self) -> tuple[int, float]:
        """Bytes of snapshots that came in, and the seconds that took."""
        return self.peers.received.bytes, self.peers.received.seconds

    def reports(self) -> Mapping[Partition, GroupReport]:
        """What there is to report."""
        return {replica.partition: report(replica) for replica in self._replicas.values()}

    # Looking

    @property
    def machine_connected(self) -> bool:
        """Whether the state machine is there."""
        return self._machine.connected

    @property
    def machine_silent(self) -> bool:
        """Whether the state machine is there and does not answer."""
        return self._upkeep.attendance.silent

    @property
    def peers(self) -> Peers:
        """The other stores."""
        return self._peers

    def peer_states(self) -> dict[str, str]:
        """By store: connected, or why not."""
        refusals = self._peers.refusals
        return {
            store: "connected" if self._peers.connected(store) else refusals.get(store, "not connected")
            for store in sorted(self._addresses)
        }

    def clock_ahead(self) -> int:
        """How many seconds this store's wall clock is ahead of most stores'; 0 where it is close."""
        return clock_ahead(self._peers.skews().values())

    async def replica_statuses(self) -> list[ReplicaStatus]:
        """Every replica, not all of one moment: others have their turn in between."""
        found: list[ReplicaStatus] = []
        for replica in list(self._replicas.values()):
            found.append(describe(replica))
            if len(found) % _PER_TURN == 0:
                await asyncio.sleep(0)
        return found

    def behind(self) -> list[Partition]:
        """Groups for whose sake the other stores must not be stopped now."""
        return [replica.partition for replica in self._replicas.values() if is_behind(replica)]

    @property
    def machine_drops(self) -> Drops:
        """Connections of state machines given up, by why."""
        return self._machine.drops

    @property
    def awake(self) -> int:
        """How many groups are awake."""
        return self._upkeep.awake

    @property
    def logs(self) -> LogRetention:
        """How long the logs of all groups are, and how much each may keep."""
        return self._ports.allowance

    def log_stats(self) -> LogStats:
        """The log as it is; numbers of a thread at work, so not all of one moment."""
        return self._log.stats()

    @property
    def round_times(self) -> RoundTimes:
        """How long the log's rounds took."""
        return self._ports.writer.times


def _read_peers(directory: Path) -> dict[str, Address]:
    """Where peers were last known to be; a file that cannot be read is as good as none, for the metastore tells."""
    with suppress(OSError, ValueError, RecursionError):
        return msgspec.json.decode((directory / _PEERS_FILE).read_bytes(), type=dict[str, Address])
    return {}
