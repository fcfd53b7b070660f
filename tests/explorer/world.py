"""The state of a run: metastore, stores, operators, transactions in flight, and possible actions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

import msgspec

from evenkeel.metastore.metastore_api import Compare, Put, Txn, TxnResult
from evenkeel.metastore.mvcc import Mvcc
from evenkeel.protocol.keys import Keys
from evenkeel.protocol.partition_view import PartitionView, read_partition
from evenkeel.protocol.records import (
    Adoption,
    ReplicaId,
    Retarget,
    StoreRecord,
    StoreState,
    TableRecord,
    TableState,
    decode,
    encode,
)
from evenkeel_raft.agent.partition_agent import PartitionAgent, SeenTable
from tests.explorer.raft import Entry, Replica

KEYS = Keys(namespace="explorer", store_cluster="stores")
TABLE = "t.1"
PARTITION = KEYS.partition(TABLE, 0)
RECORD = KEYS.table(TABLE)
WATCHED = frozenset((*PARTITION.all(), RECORD, KEYS.tombstone(TABLE)))

Action = tuple[str, ...]
T = TypeVar("T")


class Target(NamedTuple):
    """The user's target: voters and learners by store; an empty one is invalid, and None drops the table."""

    voters: tuple[str, ...] | None
    learners: tuple[str, ...] = ()


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """The start of a run, and the budget of its faults."""

    stores: tuple[str, ...]
    targets: tuple[Target, ...]
    """The first is the target at creation; the others may follow in any order."""
    mode: Retarget = Retarget.ADJUST
    ready: bool = True
    """Start with the table created and its replicas running."""
    budget: dict[str, int] = {}
    """The maximum number of each fault or user action; unlisted ones do not occur."""


class InFlight(NamedTuple):
    """A transaction that was sent and not yet answered; `boot` shows whether its sender has restarted since."""

    number: int
    sender: str
    boot: int
    what: str
    txn: Txn


class Seen(NamedTuple):
    """What a sidecar can see: the partition's keys and, if it is ready, its table."""

    view: PartitionView
    table: SeenTable | None
    revision: int


class Store:
    """A store: its disk, its process, and its sidecar's real agent."""

    __slots__ = (
        "agent", "blank", "boot", "cut", "lost", "name", "paused", "refusing", "remembered", "replica", "up",
        "waiting", "watched",
    )  # fmt: skip

    def __init__(self, name: str) -> None:
        self.name = name
        self.lost = False
        self.refusing = False
        """Whether the volume has followed another metastore than the present one."""
        self.replica: Replica | None = None
        self.boot = 0
        self.cut = False
        self.mount(1)
        self.start_process()

    def mount(self, number: int) -> None:
        """Return an empty volume, the store's n-th."""
        self.agent = PartitionAgent(PARTITION, RECORD, store=self.name, volume=f"{self.name}-{number}")

    def start_process(self) -> None:
        """Start a new process without any volatile state."""
        self.boot += 1
        self.up = True
        self.paused = False
        self.blank = False
        self.watched = 0
        """Return the revision of the watch; a read may be ahead of it."""
        self.waiting = 0
        self.remembered: PartitionView | None = None
        self.agent.restart()
        if self.replica is not None:
            self.replica.restart()

    def clone(self) -> Store:
        twin = Store.__new__(Store)
        for name in self.__slots__:
            setattr(twin, name, getattr(self, name))
        twin.agent = PartitionAgent.__new__(PartitionAgent)
        for name in PartitionAgent.__slots__:
            setattr(twin.agent, name, getattr(self.agent, name))
        twin.replica = None if self.replica is None else self.replica.clone()
        return twin

    @property
    def volume(self) -> str:
        return self.agent.volume

    @property
    def running(self) -> bool:
        return self.up and not self.paused

    @property
    def reachable(self) -> bool:
        """Whether messages of other stores arrive."""
        return self.running and not self.cut

    @property
    def leader(self) -> Replica | None:
        """Return the store's replica if it considers itself the leader."""
        return self.replica if self.running and self.replica is not None and self.replica.leading else None


class Operator:
    """One of the two operators: stateless except for its epoch and its transaction in flight."""

    __slots__ = ("boot", "epoch_mod", "name", "waiting")

    def __init__(self, name: str) -> None:
        self.name = name
        self.boot = 1
        self.epoch_mod = 0
        self.waiting = 0

    def clone(self) -> Operator:
        twin = Operator(self.name)
        twin.boot, twin.epoch_mod, twin.waiting = self.boot, self.epoch_mod, self.waiting
        return twin


class World:
    """The whole state; `sidecars`, `operators` and `faults` define its actions."""

    __slots__ = (
        "asked",
        "backup",
        "budget",
        "cache",
        "cached_at",
        "committed",
        "desired",
        "flights",
        "flown",
        "metastore",
        "operators",
        "past",
        "planned",
        "request",
        "scenario",
        "stores",
        "terms",
        "trigger",
        "watch_revision",
        "wiped",
        "writes",
    )  # fmt: skip

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.metastore = Mvcc(keep_history=False)
        self.stores = {name: Store(name) for name in scenario.stores}
        self.operators = {name: Operator(name) for name in ("o1", "o2")}
        self.flights: list[InFlight] = []
        self.flown = 0
        self.desired = scenario.targets[0]
        self.budget = dict(scenario.budget)
        self.watch_revision = 0
        self.past: tuple[Seen, ...] = ()
        """The last states of the partition's keys, which a lagging watch or a stale read may return."""
        self.committed: dict[int, Entry] = {}
        """All committed entries by index; they must never change."""
        self.terms: dict[int, ReplicaId] = {}
        """The leader of each term."""
        self.wiped: frozenset[ReplicaId] = frozenset()
        """Replicas removed by a fault, as opposed to those deleted by the protocol."""
        self.trigger = 0
        self.planned = 0
        """The newest handled plan, as recorded in the Table's status."""
        self.request = 0
        """Adoptions that the user has requested."""
        self.asked = True
        """Whether the last one is for the present metastore."""
        self.backup: Mvcc | None = None
        self.writes = 0
        self.cache: dict[str, object] = {}
        self.cached_at = 0
        for store in self.stores.values():
            self.register(store)

    def clone(self) -> World:
        twin = World.__new__(World)
        twin.scenario = self.scenario
        twin.metastore = self.metastore.clone()
        twin.stores = {name: store.clone() for name, store in self.stores.items()}
        twin.operators = {name: operator.clone() for name, operator in self.operators.items()}
        twin.flights = list(self.flights)
        twin.flown, twin.desired, twin.writes, twin.trigger = self.flown, self.desired, self.writes, self.trigger
        twin.planned, twin.request, twin.asked, twin.backup = self.planned, self.request, self.asked, self.backup
        twin.budget = dict(self.budget)
        twin.watch_revision, twin.past = self.watch_revision, self.past
        twin.committed, twin.terms, twin.wiped = dict(self.committed), dict(self.terms), self.wiped
        twin.cache, twin.cached_at = dict(self.cache), self.cached_at
        return twin

    # -- metastore ---------------------------------------------------------------------------------------------------

    def run(self, txn: Txn) -> TxnResult:
        """Run a transaction now."""
        before = self.metastore.revision
        result = self.metastore.txn(txn)
        if self.metastore.revision != before and any(
            _touches_watched(op.key) for op in txn.success if result.succeeded
        ):
            self.watch_revision = self.metastore.revision
            self.past = (*self.past[-3:], self.seen())
        return result

    def send(self, sender: Store | Operator, what: str, txn: Txn) -> None:
        """Send a transaction; it arrives, or not, at any later time."""
        self.flown += 1
        sender.waiting = self.flown
        self.flights.append(InFlight(self.flown, sender.name, sender.boot, what, txn))

    def derived(self, name: str, derive: Callable[[], T]) -> T:
        """Return a value derived only from the metastore, computed once per revision."""
        if self.cached_at != self.metastore.revision:
            self.cache, self.cached_at = {}, self.metastore.revision
        if name not in self.cache:
            self.cache[name] = derive()
        return self.cache[name]  # type: ignore[return-value]

    def view(self) -> PartitionView:
        """Return the partition's present keys."""
        return self.derived("view", self._read_view)

    def _read_view(self) -> PartitionView:
        found = {key: kv for key in PARTITION.all() if (kv := self.metastore.get(key)) is not None}
        return read_partition(PARTITION, found)

    def seen(self) -> Seen:
        """Return what a linearizable read returns."""
        return self.derived("seen", self._read_seen)

    def _read_seen(self) -> Seen:
        record, mod = self.record()
        ready = record is not None and record.state is TableState.READY
        return Seen(self.view(), SeenTable(mod, self.scenario.mode) if ready else None, self.watch_revision)

    def record(self) -> tuple[TableRecord | None, int]:
        """Return the table's record and its mod revision."""
        return self.derived("record", self._read_record)

    def _read_record(self) -> tuple[TableRecord | None, int]:
        kv = self.metastore.get(RECORD)
        return (None, 0) if kv is None else (decode(TableRecord, kv.value, key=RECORD), kv.mod_revision)

    def register(self, store: Store) -> None:
        """Register the volume that the store runs on."""
        self.run(Txn(success=(Put(KEYS.store(store.name), encode(StoreRecord(volume=store.volume))),)))

    # -- stores ------------------------------------------------------------------------------------------------------

    def registered(self, name: str) -> str:
        """Return the volume that the store registered last; None if this metastore does not have it."""
        kv = self.metastore.get(KEYS.store(name))
        return "" if kv is None else decode(StoreRecord, kv.value, key=kv.key).volume

    def declared_lost(self, name: str) -> bool:
        """Whether the operator has given up the store as registered last."""
        return name not in self.volumes()

    def volumes(self) -> dict[str, str]:
        """Return the volumes of all stores that are not to be replaced."""
        return self.derived("volumes", self._read_volumes)

    def _read_volumes(self) -> dict[str, str]:
        found = {name: self.registered(name) for name in self.stores if not self._replaced(name)}
        return {name: volume for name, volume in found.items() if volume}

    def _replaced(self, name: str) -> bool:
        kv = self.metastore.get(KEYS.store_state(name))
        if kv is None:
            return False
        state = decode(StoreState, kv.value, key=kv.key)
        return state.given_up(TABLE) and state.volume == self.registered(name)

    def replicas(self) -> Iterator[Replica]:
        """Return the replicas of running processes."""
        return (store.replica for store in self.stores.values() if store.running and store.replica is not None)

    def reach(self, origin: ReplicaId, target: ReplicaId) -> Replica | None:
        """Return the replica that a message from `origin` reaches, if any."""
        store = self.stores[target[0]]
        if store.replica is None or store.replica.id != target:
            return None
        if origin == target:
            return store.replica if store.running else None
        return store.replica if store.reachable and self.stores[origin[0]].reachable else None

    # -- another metastore -------------------------------------------------------------------------------------------

    def replace_metastore(self, other: Mvcc) -> None:
        """Replace the metastore: no store trusts it, and transactions in flight are lost."""
        self.metastore, self.asked = other, False
        self.cache, self.cached_at = {}, 0
        self.watch_revision, self.past = other.revision, ()
        self.flights = []
        for store in self.stores.values():
            store.refusing = True
            self.forget_metastore(store)
        for operator in self.operators.values():
            operator.boot, operator.waiting, operator.epoch_mod = operator.boot + 1, 0, 0

    def forget_metastore(self, store: Store) -> None:
        """Restart the store's sidecar without any memory of a metastore."""
        store.agent.restart()
        store.watched = store.waiting = 0
        store.remembered = None

    def adopted(self) -> bool:
        """Whether the table was adopted in the user's last adoption, if there was one."""
        record, _ = self.record()
        taken = record is not None and record.adopted == str(self.request)
        return not self.request or taken or self.adoption() == str(self.request)

    def adoption(self) -> str:
        """Return the adoption with which the metastore lets stores follow it."""
        kv = self.metastore.get(KEYS.adoption)
        return "" if kv is None else decode(Adoption, kv.value, key=kv.key).request

    def spend(self, kind: str) -> bool:
        """Whether the budget allows this action once more."""
        return self.budget.get(kind, 0) > 0

    def holds_table(self) -> Compare:
        """Return the comparison of the table's record that a sidecar uses."""
        return Compare(RECORD, "mod", "=", self.record()[1])


def _touches_watched(key: str) -> bool:
    return key in WATCHED or any(watched.startswith(key) for watched in WATCHED)


def target_of(desired: Target, usable: dict[str, str], stores: tuple[str, ...]) -> tuple[list[str], int]:
    """Return the usable stores of a target, voters first, and the number of voters."""
    if desired.voters is None:
        return [], 0
    spares = [name for name in stores if name in usable and name not in (*desired.voters, *desired.learners)]
    voters = _fill(desired.voters, usable, [*spares, *(name for name in desired.learners if name in usable)])
    left = {name: volume for name, volume in usable.items() if name not in voters}
    learners = _fill(desired.learners, left, [name for name in spares if name in left])
    return [*voters, *learners], len(voters)


def _fill(names: tuple[str, ...], usable: dict[str, str], spares: list[str]) -> list[str]:
    chosen = [name for name in names if name in usable]
    while len(chosen) < len(names) and spares:
        chosen.append(spares.pop(0))
    return chosen
