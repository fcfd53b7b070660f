"""A random walk through the life of one partition whose leaders have wall clocks that are days off and jump.

Three replicas apply one log on real engines. The leader stamps and expires with the production code (`StoreService`,
`LeaderMaintenance`), each on its own monotonic clock. The walk knows the true time. By that, nothing may expire early;
at the end, under one leader that stays, everything expires.

A walk may begin with stores of the first release, which stamp and expire by their wall clocks, and may raise the
cluster version later. While there are such stores no clock is behind, because the first release cannot handle that.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, Literal

from evenkeel.errors import StoreError
from evenkeel.protocol.keys import Keys
from evenkeel.routing.routing_table import RoutingTable
from evenkeel.wire.socket_messages import Committed, LoggedEntry, ProposeOutcome, ReadAt, ReadOutcome, Role
from evenkeel_store.engine.group_metadata import STEP_MILLISECONDS
from evenkeel_store.engine.group_state import AppliedTimestamps, Group
from evenkeel_store.engine.log_entries import Expire, Pin, encode_entry
from evenkeel_store.engine.log_time import LogClocks
from evenkeel_store.engine.table_engine import TableEngine
from evenkeel_store.maintenance.leader_maintenance import LeaderMaintenance, due
from evenkeel_store.serving.store_service import StoreService
from tests.store.serving import ORDERS, table_record
from tests.store.support import GROUP, REPLICA, Bench, upsert

KEYS: Final = Keys(namespace="default", store_cluster="main")
WRITER_SECONDS: Final = 86_400.0
RETENTION_SECONDS: Final = 2 * 86_400.0
YEAR: Final = 365 * 86_400.0
SLACK_SECONDS: Final = 180.0
"""Tolerance for clocks that run slightly fast, and for a reading that is up to a minute ahead."""
RECONCILE_SECONDS: Final = 300.0

Start = Literal["stamps as they are", "log time kept", "rises", "updated"]
"""Whether a walk keeps log time: never, always, from some moment on, or after an update of all stores."""


class Replica:
    """One replica with its store's clocks; the parts of a state machine that the production code uses."""

    def __init__(self, walk: TimeWalk, directory: Path) -> None:
        self._walk = walk
        self.bench = Bench(directory)
        self.bench.open()
        self.engine: TableEngine = self.bench.engine
        self.directory = SimpleNamespace(full=lambda: "")
        self.on_doubt: Callable[..., None] = lambda group: None
        self.wall_offset = 0.0
        self.is_first_release = False
        self._rate = 1 + walk.rng.uniform(-1e-5, 1e-5)
        self.restart()

    def wall(self) -> int:
        return round(1000 * (1.7e9 + self._walk.now + self.wall_offset))

    def restart(self) -> None:
        """Lose the state in memory and begin with another monotonic clock."""
        walk, began = self._walk, self._walk.now

        def now() -> float:
            return self._rate * (walk.now - began)

        self.log_clocks = LogClocks(now)
        clock: Any = SimpleNamespace(now=now, call_at=lambda when, call: SimpleNamespace(cancel=lambda: None))
        service: Any = StoreService(self, walk, walk.routes, store="s", clock=clock, wall_clock=self.wall)  # type: ignore[arg-type]
        self.service: StoreService = service
        self.maintenance = LeaderMaintenance(
            service, clock=clock, writer_seconds=WRITER_SECONDS, keeps_time=lambda: walk.keeps_time
        )
        self.bench.group.stamps = AppliedTimestamps()
        self.log_clocks.observe(self.bench.group)

    # A leader of either release

    def stamp(self) -> int:
        return self.wall() if self.is_first_release else self.service.stamp(self.bench.group)

    async def reconcile(self) -> None:
        if not self.is_first_release:
            await self.maintenance.reconcile([GROUP])
            return
        now, group = self.wall(), self.bench.group
        before, table = now - round(1000 * WRITER_SECONDS), self._walk.routes.table(group.metadata.table)
        found = due(group.metadata, group.tokens.silent_since(before), now=now, table=table, writers_before=before)
        if found is not None:
            await self._walk.propose(GROUP, REPLICA, encode_entry(Expire(found.pins, found.writers, found.changes)))

    async def pin(self, name: str, seconds: float) -> None:
        if self.is_first_release:
            now = self.wall()
            await self._walk.propose(GROUP, REPLICA, encode_entry(Pin(name, now + round(1000 * seconds), now)))
        else:
            await self.service.pin(self.bench.group, name, seconds)

    def apply(self, most: int = 1000) -> None:
        applied = self.bench.group.metadata.applied
        entries = [entry.data for entry in self._walk.log[applied : applied + most]]
        if entries:
            before = self.bench.group.metadata.time
            self.bench.apply(*entries)
            assert self.bench.group.metadata.applied == applied + len(entries)
            assert self.bench.group.metadata.time >= before, "log time went back"
            self.log_clocks.observe(self.bench.group)

    # The state machine's interface

    @property
    def groups(self) -> Replica:
        return self

    @property
    def queue(self) -> Replica:
        return self

    def role(self, group: int) -> Role:
        return Role(self is self._walk.leader, 1)

    async def call(self, work: Callable[[TableEngine], Any]) -> Any:
        return work(self.engine)

    async def until_applied(self, group: int, index: int) -> None:
        self.apply()

    def replicas(self) -> dict[int, int]:
        return {GROUP: REPLICA}

    def find(self, table: str, partition: int) -> Group:
        return self.bench.group


class TimeWalk:
    """The partition, and the truth about it."""

    def __init__(self, directory: Path, seed: int, *, start: Start) -> None:
        self.rng = random.Random(seed)
        self.now = 0.0
        self.keeps_time = start == "log time kept"
        self._updates = start == "updated"
        self._rises = start in ("rises", "updated")
        self.log: list[LoggedEntry] = []
        self.routes = RoutingTable(KEYS)
        spec = {"retention": f"{RETENTION_SECONDS:g}s"}
        self.routes.put(KEYS.table("orders.1"), table_record(ORDERS, changes=spec))
        self.written: dict[str, float] = {}
        self.pinned: dict[str, float] = {}
        self.indexes: list[tuple[int, float]] = []
        self.leader: Replica | None = None
        self.replicas = [Replica(self, directory / f"store-{number}") for number in range(3)]
        self.leader = self.replicas[0]
        for replica in self.replicas:
            replica.is_first_release = start == "updated"
        self._sequence = 0
        self._began: tuple[int, float] | None = None

    def close(self) -> None:
        for replica in self.replicas:
            replica.bench.close()

    @property
    def lead(self) -> Replica:
        assert self.leader is not None
        return self.leader

    async def propose(self, group: int, replica: int, data: bytes) -> ProposeOutcome:
        """Commit a proposal of the leader at once, like a sidecar."""
        self.log.append(LoggedEntry(len(self.log) + 1, data))
        return Committed(len(self.log), 1)

    async def read_index(self, group: int, replica: int) -> ReadOutcome:
        """Answer like the leader's sidecar."""
        return ReadAt(len(self.log))

    async def pass_time(self, seconds: float) -> None:
        """Advance the time; the leader reconciles and replicas apply."""
        while seconds > 0:
            piece = min(seconds, RECONCILE_SECONDS)
            seconds -= piece
            self.now += piece
            await self.lead.reconcile()
            self.lead.apply()
            for replica in self.replicas:
                if self.rng.random() < 0.9:
                    replica.apply()
        self.check()

    async def write(self) -> None:
        writer = self.rng.choice("abcdefgh")
        self._sequence += 1
        await self._log_write(writer, self.lead.stamp())

    async def _log_write(self, writer: str, at: int) -> None:
        row = {"id": self._sequence, "customer": writer}
        schema = self.lead.bench.group.metadata.schema
        assert schema is not None
        await self.propose(GROUP, REPLICA, upsert([row], schema, token=(writer, self._sequence), at=at))
        self.written[writer] = self.now
        self.indexes.append((len(self.log), self.now))

    async def write_wrongly(self) -> None:
        """Log an entry whose stamp is days or years off, which no leader of this release does."""
        self._sequence += 1
        off = self.rng.choice([-YEAR, -2 * 86_400, 2 * 86_400, YEAR])
        at = self.lead.bench.group.metadata.time + round(1000 * off)
        await self._log_write(self.rng.choice("abcdefgh"), at)

    async def pin(self) -> None:
        self._sequence += 1
        name, seconds = f"pin-{self._sequence}", self.rng.choice([60.0, 3600.0, 86_400.0])
        await self.lead.pin(name, seconds)
        self.pinned[name] = self.now + seconds

    def elect(self) -> None:
        """Elect another leader, perhaps one that has not applied the whole log."""
        self.leader = self.rng.choice(self.replicas)
        if self.rng.random() < 0.7:
            self.leader.apply()

    def update(self) -> None:
        """Upgrade a store, or downgrade it to the first release while that is possible."""
        replica = self.rng.choice(self.replicas)
        replica.is_first_release = not replica.is_first_release
        replica.wall_offset = 0.0
        replica.restart()

    def raise_version(self) -> None:
        """Upgrade the remaining stores and let leaders begin log time."""
        for replica in self.replicas:
            if replica.is_first_release:
                replica.is_first_release = False
                replica.restart()
        self.keeps_time, self._rises = True, False

    @property
    def _has_first_release(self) -> bool:
        """Whether a store of the first release may lead, now or later."""
        return self._updates and not self.keeps_time

    def jump(self) -> None:
        """Change the error of a wall clock."""
        days = self.rng.choice([0, 0, -400, -3, -1, 1, 2, 30, 366])
        replica = self.rng.choice(self.replicas)
        if not self._has_first_release:
            replica.wall_offset = days * 86_400.0
        elif not replica.is_first_release:
            replica.wall_offset = abs(days) * 86_400.0

    async def down(self) -> None:
        """Stop all stores for a while."""
        self.now += self.rng.choice([60, 3600, 3 * 86_400])
        for replica in self.replicas:
            replica.restart()
            replica.apply()

    async def step(self) -> None:
        mixed = self._has_first_release
        steps: list[tuple[int, Callable[[], Any]]] = [
            (30, self.write),
            (4, self.pin),
            (16 if mixed else 8, self.elect),
            (6, self.jump),
            (4, lambda: self.rng.choice(self.replicas).restart()),
            (8 if mixed else 2, self.down),
            (1 if self._rises else 0, self.raise_version),
            (12 if mixed else 0, self.update),
            (3 if self.lead.bench.group.metadata.time else 0, self.write_wrongly),
            (15, lambda: self.pass_time(self.rng.choice([0.01, 1, 30, 600]))),
            (3, lambda: self.pass_time(self.rng.choice([7_200, 20_000]))),
        ]
        [(_, chosen)] = self.rng.choices(steps, [weight for weight, _ in steps])
        found = chosen()
        if found is not None:
            await found

    def check(self) -> None:
        """Nothing expired early, by what the leader has applied."""
        self.lead.apply()
        group = self.lead.bench.group
        known = {use.writer for use in group.tokens.all()}
        for writer, at in self.written.items():
            assert writer in known or self.now - at >= WRITER_SECONDS - SLACK_SECONDS, f"{writer} was forgotten"
        for name, until in self.pinned.items():
            assert name in group.metadata.pins or self.now >= until - SLACK_SECONDS, f"{name} ended"
        for index, at in self.indexes:
            if self.now - at < RETENTION_SECONDS - SLACK_SECONDS:
                assert index > group.metadata.forgotten, f"the changes of {index} are forgotten"
        if group.metadata.time:
            time, since = self._began = self._began or (group.metadata.time, self.now)
            passed = self.now - since + SLACK_SECONDS
            assert group.metadata.time - time <= 1000 * passed + STEP_MILLISECONDS, "log time ran ahead"

    async def settle(self) -> None:
        """Keep one leader of this release until everything is due."""
        if self._rises:
            self.raise_version()
        await self.pass_time(RETENTION_SECONDS + WRITER_SECONDS)
        group = self.lead.bench.group
        assert not len(group.tokens), "writers are never forgotten"
        assert not group.metadata.pins, "pins never end"
        assert not group.metadata.stamps, "changes stay for ever"
        for replica in self.replicas:
            replica.apply()
        assert len({_agreed(replica) for replica in self.replicas}) == 1, "replicas differ"

    async def run(self, steps: int) -> None:
        """Take random steps, then check that everything expires."""
        await self.lead.maintenance.reconcile([GROUP])
        for replica in self.replicas:
            replica.apply()
        for _ in range(steps):
            try:
                await self.step()
            except StoreError as error:
                raise AssertionError(f"a step failed: {error}") from error
        await self.settle()


def _agreed(replica: Replica) -> tuple[Any, ...]:
    """Return what replicas must agree on, apart from rows."""
    metadata = replica.bench.group.metadata
    return (
        metadata.time,
        metadata.forgotten,
        metadata.ended,
        tuple(sorted(metadata.pins)),
        tuple(replica.bench.group.tokens.all()),
    )
