"""What the store does for its clients, on the event loop: find a partition, wait for an index, log an entry.

Flight threads call it through `loop_bridge`. Each call returns a result or raises a `StoreError`.
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
_ROLE_POLL_SECONDS: Final = 0.2

Held = tuple[object, int]


def now_milliseconds() -> int:
    """Return the wall clock in milliseconds."""
    return time.time_ns() // 1_000_000


class StoreService:
    """One store, as its clients see it."""

    def __init__(
        self,
        state_machine: StoreStateMachine,
        sidecar: StoreSocket,
        routes: Routes,
        *,
        store: str,
        clock: Clock | None = None,
        wall_clock: Callable[[], int] = now_milliseconds,
        timeout: float = _TIMEOUT,
    ) -> None:
        self.state_machine = state_machine
        self.routes = routes
        self.store = store
        self.wall_clock = wall_clock
        self._sidecar = sidecar
        self._timeout = timeout
        self._clock = clock or SystemClock()
        self.reads = ReadIndexes(self._read_index, clock=self._clock, timeout=timeout)
        state_machine.on_doubt = self.report_doubt
        state_machine.on_size = self.report_size

    # Finding

    def find(self, named: str, partition: int) -> Group:
        """Return a partition's group, or raise an error that redirects the client."""
        known = self.routes.table(named)
        key = self._key(named, known)
        if self.routes.dropped(key):
            raise TableDroppedError(f"table {table_name(key)} was deleted; undelete it to read its data")
        group = self.state_machine.groups.find(key, partition)
        if group is not None:
            return group
        if known is None:
            raise _unknown(named)
        if partition >= known.schema.partitions:
            last = known.schema.partitions - 1
            raise UnknownTableError(
                f"table {known.name} has no partition {partition}; it has the partitions 0 to {last}"
            )
        raise self.redirect(key, partition, f"partition {partition} of table {known.name} is not on store {self.store}")

    def _key(self, named: str, known: KnownTable | None) -> str:
        if known is not None:
            return known.key
        if "." in named:
            return named
        # Partitions on this store can be found without the metastore.
        local = (key for key in self.state_machine.groups.tables() if table_name(key) == named)
        return next((key for key in local if not self.routes.dropped(key)), named)

    def redirect(self, key: str, partition: int, why: str, *, hint: str = "") -> NotLeaderError:
        """Return the error that redirects a client to the leader, as far as it is known."""
        store = hint or self.routes.leader(key, partition)
        if not store or store == self.store:
            others = [other for other in self.routes.replicas(key, partition) if other != self.store]
            store = others[0] if others and not self.state_machine.groups.find(key, partition) else ""
        where = f": ask store {store}" if store else ": its leader is unknown; retry later"
        return NotLeaderError(why + where, store=store, address=self.routes.address(store))

    # Reading

    async def await_fresh(self, group: Group, reading: ReadRequest | LookupRequest) -> Held | None:
        """Wait until a read may be answered; returns the held index of the request's pin, if it names one."""
        self.state_machine.throttle.note_client()
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
                f"table {group.metadata.name} has no columns yet: it has had no leader so far; retry later"
            )
        if group.metadata.damage:
            raise self.redirect(
                group.metadata.table, group.metadata.partition, f"the rows on store {self.store} are damaged"
            )
        return self._hold_pin(group, reading.pin) if reading.pin else None

    def _hold_pin(self, group: Group, name: str) -> Held:
        held = group.hold_pin(name)
        if held is None:
            metadata = group.metadata
            raise UnknownPinError(
                f"table {metadata.name}, partition {metadata.partition}: no pin is called {name}; create it again"
            )
        return held

    async def _until_applied(self, group: Group, index: int) -> None:
        try:
            async with asyncio.timeout(self._timeout):
                await self.state_machine.queue.until_applied(group.number, index)
        except TimeoutError:
            raise UnavailableError(
                f"index {index} was not applied within {self._timeout:g} s; "
                f"the applied index is {group.metadata.applied}; retry later"
            ) from None
        except asyncio.CancelledError:
            # The group was closed while the caller waited.
            if self.state_machine.groups.find(group.metadata.table, group.metadata.partition) is group:
                raise
            raise self.gone_error(group) from None

    def gone_error(self, group: Group) -> TableDroppedError | NotLeaderError:
        """Return the error for a partition that is no longer on this store."""
        metadata = group.metadata
        if self.routes.table(metadata.table) is None:
            return TableDroppedError(f"table {metadata.name} was dropped")
        return self.redirect(
            metadata.table, metadata.partition, f"partition {metadata.partition} has left store {self.store}"
        )

    def is_open(self, group: Group) -> bool:
        """Whether a group is still open here."""
        return self.state_machine.groups.find(group.metadata.table, group.metadata.partition) is group

    async def _read_index(self, group: int) -> ReadOutcome:
        replica = self.state_machine.groups.replicas().get(group)
        return Unavailable() if replica is None else await self._sidecar.read_index(group, replica)

    # Writing

    async def propose(self, group: Group, data: bytes) -> Committed:
        """Log an entry through raft."""
        self.check_can_lead(group)
        full = self.state_machine.directory.full()
        if full:
            raise DiskFullError(full)
        outcome = await self._sidecar.propose(group.number, group.metadata.replica, data)
        if isinstance(outcome, Committed):
            return outcome
        raise self._failure(group, outcome)

    def check_can_lead(self, group: Group) -> None:
        """Raise a redirect if another store is known to lead."""
        role = self.state_machine.groups.role(group.number)
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
                return BusyError("apply backlog is full; retry later")
            case TooLarge(limit):
                return too_large(limit)
        return OutcomeUnknownError("outcome unknown; retry with the same write token")

    async def result_of(self, group: Group, committed: Committed, writer: str, sequence: int) -> str:
        """Return the result of a conditional write; empty if it was carried out."""
        await self._until_applied(group, committed.index)
        result = await self.state_machine.queue.call(lambda _: group.tokens.result(writer, sequence))
        if result is None:
            raise OutcomeUnknownError("the result of this write token is no longer stored; read the rows to find out")
        return result

    async def refresh_columns(self, group: Group) -> None:
        """Learn columns that other replicas, or the table's spec, already have."""
        metadata = group.metadata
        known = self.routes.table(metadata.table)
        if known is not None and (metadata.schema is None or known.schema.version > metadata.schema.version):
            await self.add_columns(group, known)
        else:
            await self.catch_up(group)

    async def catch_up(self, group: Group) -> None:
        """Wait until everything logged so far is applied here."""
        await self._until_applied(group, await self.reads.index(group.number))

    async def add_columns(self, group: Group, known: KnownTable) -> None:
        """Log a table's columns and wait until they are applied."""
        committed = await self.propose(group, encode_entry(AddColumns(known.schema, known.changes)))
        await self._until_applied(group, committed.index)

    async def report(self, group: Group, error: BaseException) -> None:
        """Report a read error to the state machine."""
        self.state_machine.report(group.number, error)

    # Time

    def stamp(self, group: Group) -> int:
        """Return the log time for a new entry."""
        return self.state_machine.log_clocks.stamp(group, wall=self.wall_clock())

    def time_of_day(self, group: Group, log_time: int) -> int:
        """Return the wall-clock time at which a log time is reached, if the partition has a leader all the time."""
        now = self.wall_clock()
        return now + log_time - self.state_machine.log_clocks.read(group, wall=now)

    # Barriers

    async def pin(self, group: Group, name: str, seconds: float) -> tuple[PinnedAt, bool]:
        """Create or renew a pin; returns it and whether it is new."""
        now = self.stamp(group)
        committed = await self.propose(group, encode_entry(Pin(name, now + round(seconds * 1000), now)))
        await self._until_applied(group, committed.index)
        pinned = group.metadata.pins.get(name)
        if pinned is None:
            raise UnknownPinError(f"the pin {name} has expired; read again with a pin of another name")
        return pinned, pinned.index == committed.index

    async def unpin(self, group: Group, name: str) -> None:
        """Remove a pin."""
        await self.propose(group, encode_entry(Unpin(name)))

    async def take_hash(self, group: Group) -> tuple[int, str]:
        """Make every replica hash its rows and compare with ours; returns the index and our hash."""
        committed = await self.propose(group, encode_entry(Hash()))
        try:
            async with asyncio.timeout(self._timeout):
                taken = await self.state_machine.until_hashed(group.number, committed.index)
        except TimeoutError:
            raise UnavailableError(
                f"the hash at index {committed.index} is still being computed; see the status later"
            ) from None
        if not taken:
            raise UnavailableError(f"the rows at index {committed.index} could not be hashed; see the store's log")
        await self.propose(group, encode_entry(Compare(committed.index, taken)))
        return committed.index, taken

    async def rebuild(self, group: Group, index: int, majority: str) -> None:
        """Discard a replica whose rows differ from the majority's; its leader restores it.

        A replica that leads hands over first. If no other replica can take over, it keeps its rows.
        """
        ours = group.hashes.get(index, "")
        if ours in ("", majority):
            what = "the rows have that hash" if ours else "no hash was taken"
            raise RequestError(f"nothing to rebuild: at index {index} {what} on this store; verify again")
        why = f"at index {index} its hash is {ours}, and most replicas' is {majority}"
        await self._hand_over(group, why)
        await self.state_machine.discard(group.number, why)

    async def _hand_over(self, group: Group, why: str) -> None:
        deadline = self._clock.now() + self._timeout
        while self.state_machine.groups.role(group.number).leader:
            if self._clock.now() >= deadline:
                self.report_doubt(group)
                raise UnavailableError(
                    f"no replica took over the leadership of partition {group.metadata.partition}; retry later"
                )
            self._sidecar.doubt(group.number, group.metadata.replica, why, unfit=True)
            await self._clock.sleep(_ROLE_POLL_SECONDS)

    def set_comparison_problem(self, group: Group, comparison_problem: str) -> None:
        """Record what a comparison of all replicas found against the rows here."""
        if comparison_problem != group.comparison_problem:
            group.comparison_problem = comparison_problem
            if comparison_problem:
                log.error("%s", comparison_problem, extra=group.metadata.fields())
            self.report_doubt(group)

    def report_doubt(self, group: Group) -> None:
        """Report to the sidecar why a group's rows may be wrong."""
        self._sidecar.doubt(group.number, group.metadata.replica, group.metadata.damage or group.doubt)

    def report_size(self, group: Group) -> None:
        """Report a group's size to the sidecar, for plans and their progress."""
        if group.size is not None:
            self._sidecar.size(group.number, group.metadata.replica, group.size)


def too_large(limit: int = MAX_ENTRY_BYTES) -> TooLargeError:
    """Return the error for a batch that does not fit into one entry."""
    return TooLargeError(f"an encoded batch may have at most {limit} bytes: send smaller batches", limit=limit)


def _unknown(named: str) -> UnknownTableError | TableDroppedError:
    if "." in named:
        return TableDroppedError(f"the requested table {table_name(named)} was dropped")
    return UnknownTableError(f"no table is called {named}")
