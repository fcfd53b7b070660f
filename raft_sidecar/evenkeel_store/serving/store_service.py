"""What the store does for clients, on the event loop: find the partition, wait for an index, have something logged.

Everything here is asked by threads of the Flight server, and answered with a result or a `StoreError`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from evenkeel.errors import (
    BusyError,
    DiskFullError,
    NotLeaderError,
    OutcomeUnknownError,
    RequestError,
    TableDroppedError,
    TooLargeError,
    UnavailableError,
    UnknownPinError,
    UnknownTableError,
)
from evenkeel.protocol.keys import table_name
from evenkeel.routing.routing_table import KnownTable, Routes
from evenkeel.runtime.clock import Clock, SystemClock
from evenkeel.wire.flight import LookupRequest, ReadRequest
from evenkeel.wire.socket_messages import (
    MAX_ENTRY_BYTES,
    Busy,
    Committed,
    NotLeader,
    ProposeOutcome,
    ReadOutcome,
    TooLarge,
    Unavailable,
)
from evenkeel.wire.store_socket import StoreSocket
from evenkeel_store.engine.group_metadata import PinnedAt
from evenkeel_store.engine.group_state import Group
from evenkeel_store.engine.log_entries import AddColumns, Compare, Hash, Pin, Unpin, encode_entry
from evenkeel_store.serving.read_indexes import ReadIndexes
from evenkeel_store.state_machine.store_state_machine import StoreStateMachine

__all__ = ["Held", "StoreService", "now_milliseconds", "too_large"]

log = logging.getLogger(__name__)

_TIMEOUT: Final = 10.0
_ROLE_SECONDS: Final = 0.2

Held = tuple[object, int]


def now_milliseconds() -> int:
    """By this machine's clock."""
    return time.time_ns() // 1_000_000


class StoreService:
    """One store, for its clients."""

    def __init__(
        self,
        state_machine: StoreStateMachine,
        sidecar: StoreSocket,
        routes: Routes,
        *,
        store: str,
        clock: Clock | None = None,
        now: Callable[[], int] = now_milliseconds,
        timeout: float = _TIMEOUT,
    ) -> None:
        self.state_machine = state_machine
        self.routes = routes
        self.store = store
        self.now = now
        self._sidecar = sidecar
        self._timeout = timeout
        self._clock = clock or SystemClock()
        self.reads = ReadIndexes(self._read_index, clock=self._clock, timeout=timeout)
        state_machine.on_doubt = self.report_doubt
        state_machine.on_size = self.report_size

    # Finding

    def find(self, named: str, partition: int) -> Group:
        """Return a partition that is here, or raise where it is instead."""
        known = self.routes.table(named)
        key = self._key(named, known)
        if self.routes.dropped(key):
            raise TableDroppedError(f"table {table_name(key)} was deleted; undelete it to read its data")
        group = self.state_machine.hosted(key, partition)
        if group is not None:
            return group
        if known is None:
            raise _unknown(named)
        if partition >= known.schema.partitions:
            last = known.schema.partitions - 1
            raise UnknownTableError(f"table {known.name} has the partitions 0 to {last}, and {partition} was asked for")
        raise self.redirect(key, partition, f"partition {partition} of table {known.name} is not on store {self.store}")

    def _key(self, named: str, known: KnownTable | None) -> str:
        if known is not None:
            return known.key
        if "." in named:
            return named
        # Without the metastore, what is here is known all the same.
        here = (key for key in self.state_machine.hosted_tables() if table_name(key) == named)
        return next((key for key in here if not self.routes.dropped(key)), named)

    def redirect(self, key: str, partition: int, why: str, *, hint: str = "") -> NotLeaderError:
        """Return the error that sends a client to whoever leads, as far as is known."""
        store = hint or self.routes.leader(key, partition)
        if not store or store == self.store:
            others = [other for other in self.routes.replicas(key, partition) if other != self.store]
            store = others[0] if others and not self.state_machine.hosted(key, partition) else ""
        where = f": ask store {store}" if store else ": nobody is known to lead it, try again"
        return NotLeaderError(why + where, store=store, address=self.routes.address(store))

    # Reading

    async def await_fresh(self, group: Group, reading: ReadRequest | LookupRequest) -> Held | None:
        """Wait until a read may be answered; returns the index to read at, held, where it is not just the newest."""
        self.state_machine.throttle.served()
        if reading.at_least is not None:
            await self._until_applied(group, reading.at_least)
        elif not reading.pin:
            index = None
            if reading.max_age is not None:
                index = self.reads.confirmed(group.number, max_age=reading.max_age)
            if index is None:
                index = await self.reads.index(group.number)
            await self._until_applied(group, index)
        if group.metadata.schema is None:
            raise UnavailableError(
                f"table {group.metadata.name} has no columns yet: nobody has led it so far; try again"
            )
        if group.metadata.damage:
            raise self.redirect(group.metadata.table, group.metadata.partition, "the rows here are damaged")
        return self._hold_pin(group, reading.pin) if reading.pin else None

    def _hold_pin(self, group: Group, name: str) -> Held:
        held = group.hold_pin(name)
        if held is None:
            metadata = group.metadata
            raise UnknownPinError(
                f"table {metadata.name}, partition {metadata.partition}: no pin is called {name}; pin anew"
            )
        return held

    async def _until_applied(self, group: Group, index: int) -> None:
        try:
            async with asyncio.timeout(self._timeout):
                await self.state_machine.until_applied(group.number, index)
        except TimeoutError:
            raise UnavailableError(
                f"index {index} was not applied within {self._timeout:g} s, {group.metadata.applied} is: try again"
            ) from None
        except asyncio.CancelledError:
            # The group went away under whoever waited.
            if self.state_machine.hosted(group.metadata.table, group.metadata.partition) is group:
                raise
            raise self.gone(group) from None

    def gone(self, group: Group) -> TableDroppedError | NotLeaderError:
        """Return the error of a partition that is no longer here."""
        metadata = group.metadata
        if self.routes.table(metadata.table) is None:
            return TableDroppedError(f"table {metadata.name} was dropped")
        return self.redirect(
            metadata.table, metadata.partition, f"partition {metadata.partition} has left store {self.store}"
        )

    def is_here(self, group: Group) -> bool:
        """Whether a group is still open."""
        return self.state_machine.hosted(group.metadata.table, group.metadata.partition) is group

    async def _read_index(self, group: int) -> ReadOutcome:
        replica = self.state_machine.open_groups().get(group)
        return Unavailable() if replica is None else await self._sidecar.read_index(group, replica)

    # Writing

    async def propose(self, group: Group, data: bytes) -> Committed:
        """Have an entry logged."""
        self.check_can_lead(group)
        full = self.state_machine.directory.full()
        if full:
            raise DiskFullError(full)
        outcome = await self._sidecar.propose(group.number, group.metadata.replica, data)
        if isinstance(outcome, Committed):
            return outcome
        raise self._failure(group, outcome)

    def check_can_lead(self, group: Group) -> None:
        """Redirect where another store is known to lead."""
        role = self.state_machine.role_of(group.number)
        if not role.leader and role.hint:
            metadata = group.metadata
            raise self.redirect(
                metadata.table, metadata.partition, f"store {self.store} does not lead it", hint=role.hint
            )

    def _failure(self, group: Group, outcome: ProposeOutcome) -> Exception:
        metadata = group.metadata
        match outcome:
            case NotLeader(hint):
                return self.redirect(
                    metadata.table, metadata.partition, f"store {self.store} does not lead it", hint=hint
                )
            case Busy():
                return BusyError("more waits to be applied than is good: try again a little later")
            case TooLarge(limit):
                return too_large(limit)
        return OutcomeUnknownError("whether it was written will show: try again with the same token")

    async def result_of(self, group: Group, committed: Committed, writer: str, sequence: int) -> str:
        """Return what came of a conditional entry."""
        await self._until_applied(group, committed.index)
        result = await self.state_machine.look(lambda _: group.tokens.result(writer, sequence))
        if result is None:
            raise OutcomeUnknownError("the token was applied so long ago that its result is forgotten")
        return result

    async def refresh_columns(self, group: Group) -> None:
        """See that no column is missing here that others have, or that the table's spec has by now."""
        metadata = group.metadata
        known = self.routes.table(metadata.table)
        if known is not None and (metadata.schema is None or known.schema.version > metadata.schema.version):
            await self.add_columns(group, known)
        else:
            await self.catch_up(group)

    async def catch_up(self, group: Group) -> None:
        """Wait until everything is applied here that was logged before."""
        await self._until_applied(group, await self.reads.index(group.number))

    async def add_columns(self, group: Group, known: KnownTable) -> None:
        """Have a table's columns logged, and wait for them."""
        committed = await self.propose(group, encode_entry(AddColumns(known.schema, known.changes)))
        await self._until_applied(group, committed.index)

    async def report(self, group: Group, error: BaseException) -> None:
        """Take note of an error that somebody met while reading."""
        self.state_machine.report(group.number, error)

    # Time

    def stamp(self, group: Group) -> int:
        """Return log time for a new entry."""
        return self.state_machine.log_clocks.stamp(group, wall=self.now())

    def time_of_day(self, group: Group, log_time: int) -> int:
        """Return when, by this machine's clock, a log time was or will be reached while the partition is led."""
        now = self.now()
        return now + log_time - self.state_machine.log_clocks.read(group, wall=now)

    # Barriers

    async def pin(self, group: Group, name: str, seconds: float) -> tuple[PinnedAt, bool]:
        """Keep rows readable; returns the pin, and whether it is a new one."""
        now = self.stamp(group)
        committed = await self.propose(group, encode_entry(Pin(name, now + round(seconds * 1000), now)))
        await self._until_applied(group, committed.index)
        pinned = group.metadata.pins.get(name)
        if pinned is None:
            raise UnknownPinError(f"the pin {name} has expired: read anew, at a pin of another name")
        return pinned, pinned.index == committed.index

    async def unpin(self, group: Group, name: str) -> None:
        """Let a pin go."""
        await self.propose(group, encode_entry(Unpin(name)))

    async def take_hash(self, group: Group) -> tuple[int, str]:
        """Have every replica take its hash and compare it with ours; returns the index and ours."""
        committed = await self.propose(group, encode_entry(Hash()))
        try:
            async with asyncio.timeout(self._timeout):
                taken = await self.state_machine.until_hashed(group.number, committed.index)
        except TimeoutError:
            raise UnavailableError(f"the hash at index {committed.index} takes long: look at the status") from None
        if not taken:
            raise UnavailableError(f"the hash at index {committed.index} could not be taken here")
        await self.propose(group, encode_entry(Compare(committed.index, taken)))
        return committed.index, taken

    async def rebuild(self, group: Group, index: int, majority: str) -> None:
        """Give a replica up that is not as most others are: it is restored from its leader.

        One that leads has another lead first; where nobody can, it is kept.
        """
        ours = group.hashes.get(index, "")
        if ours in ("", majority):
            what = "is that hash" if ours else "no hash was taken"
            raise RequestError(f"nothing to rebuild: at index {index} {what} here; verify anew")
        why = f"at index {index} its hash is {ours}, and most replicas' is {majority}"
        await self._let_others_lead(group, why)
        await self.state_machine.discard(group.number, why)

    async def _let_others_lead(self, group: Group, why: str) -> None:
        until = self._clock.now() + self._timeout
        while self.state_machine.role_of(group.number).leader:
            if self._clock.now() >= until:
                self.report_doubt(group)
                raise UnavailableError(f"nobody took over partition {group.metadata.partition} from here: try again")
            self._sidecar.doubt(group.number, group.metadata.replica, why, unfit=True)
            await self._clock.sleep(_ROLE_SECONDS)

    def set_comparison_problem(self, group: Group, comparison_problem: str) -> None:
        """Keep what asking all replicas said against the rows here."""
        if comparison_problem != group.comparison_problem:
            group.comparison_problem = comparison_problem
            if comparison_problem:
                log.error("%s", comparison_problem, extra=group.metadata.fields())
            self.report_doubt(group)

    def report_doubt(self, group: Group) -> None:
        """Let the sidecar know what is known against a group's rows, for all who look at its status."""
        self._sidecar.doubt(group.number, group.metadata.replica, group.metadata.damage or group.doubt)

    def report_size(self, group: Group) -> None:
        """Let the sidecar know how large a group is, for plans and their progress."""
        if group.size is not None:
            self._sidecar.size(group.number, group.metadata.replica, group.size)


def too_large(limit: int = MAX_ENTRY_BYTES) -> TooLargeError:
    """Return the error for a batch that is more than an entry."""
    return TooLargeError(f"a batch takes at most {limit} bytes as it is logged: send smaller ones", limit=limit)


def _unknown(named: str) -> UnknownTableError | TableDroppedError:
    if "." in named:
        return TableDroppedError(f"the table {table_name(named)} that was asked for is no more: it was dropped")
    return UnknownTableError(f"no table is called {named}")
