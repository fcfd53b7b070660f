"""Rebuilds a replica whose rows differ from the majority's although no damage was detected.

After a comparison the leader asks every replica for its hash. It has a replica rebuilt from the others only if

    all replicas answer                one that is unreachable, behind or being restored leaves the result open
    a majority has the same hash       otherwise it is unknown which rows are right, and people have to decide
    two comparisons found the same     discarding rows cannot be undone
    the replica does not lead          a leader first hands over, then discards its own rows

One replica of one partition is rebuilt at a time, and the next only after the first is restored. A partition is
repaired at most once in ten minutes. Raft's log is not touched: a replica votes while it is rebuilt.
"""

from __future__ import annotations

import logging
from typing import Final, Protocol

from evenkeel.client.verification import Verified
from evenkeel.errors import StoreError
from evenkeel.runtime.clock import Clock, SystemClock
from evenkeel.wire.flight import GroupStatus, RebuildRequest
from evenkeel_store.engine.group_state import Group
from evenkeel_store.serving.store_service import StoreService

__all__ = ["RECHECK_SECONDS", "PeerStores", "ReplicaRepairer"]

log = logging.getLogger(__name__)

RECHECK_SECONDS: Final = 10.0
"""How long after a difference the replicas are compared again."""
_REPAIR_INTERVAL: Final = 600.0
_ANSWER_TIMEOUT: Final = 10.0
_RESTORE_TIMEOUT: Final = 600.0
_POLL_SECONDS: Final = 0.5


class PeerStores(Protocol):
    """The other stores; `StoreError` if one does not answer or refuses."""

    async def status(self, address: str, table: str, partition: int) -> GroupStatus | None:
        """Return the status of a store's replica of a partition; None if it has none."""
        ...

    async def rebuild(self, address: str, request: RebuildRequest) -> None:
        """Make a store discard and restore its replica."""
        ...


class ReplicaRepairer:
    """Evaluates comparisons of the partitions that this store leads, and has wrong replicas rebuilt."""

    def __init__(
        self, service: StoreService, peers: PeerStores, *, heals: bool = True, clock: Clock | None = None
    ) -> None:
        """Without `heals`, differences are only reported."""
        self._service = service
        self._peers = peers
        self._heals = heals
        self._clock = clock or SystemClock()
        self._suspects: dict[int, set[str]] = {}
        self._repaired_at: dict[int, float] = {}

    async def evaluate(self, group: Group, index: int, taken: str) -> bool:
        """Act on the replicas' hashes at a barrier, where ours is `taken`; returns whether to compare again soon."""
        found = await self._collect_hashes(group, index, taken)
        suspects = self._suspects.pop(group.number, set())
        self._service.set_comparison_problem(group, self._leader_problem(found))
        if not found.differing or not self._heals:
            return False
        if found.silent or not found.wrong:
            return bool(found.silent)
        self._suspects[group.number] = set(found.wrong)
        confirmed = [store for store in found.wrong if store in suspects]
        if confirmed and self._may_repair(group):
            self._repaired_at[group.number] = self._clock.now()
            # Other stores first: this one, as the leader, restores them.
            await self._repair(group, found, min(confirmed, key=lambda store: store == self._service.store))
        return True

    def _may_repair(self, group: Group) -> bool:
        at = self._repaired_at.get(group.number)
        return at is None or self._clock.now() - at >= _REPAIR_INTERVAL

    def _leader_problem(self, found: Verified) -> str:
        """Return why the leader's own rows may be wrong; empty if nothing speaks against them."""
        if not found.differing or found.silent:
            return ""
        at = f"at index {found.index}"
        if not found.majority:
            held = "; ".join(f"{store} has {value}" for store, value in sorted(found.replicas.items()))
            return (
                f"{at} no hash of the rows has a majority ({held}): find out which is right, and drain the other stores"
            )
        if self._service.store in found.wrong:
            return f"{at} the hash of the rows is {found.leader}, and most replicas' is {found.majority}"
        return ""

    # Hashes of all replicas

    async def _collect_hashes(self, group: Group, index: int, taken: str) -> Verified:
        """Ask until all have answered; stores that are unreachable or late count as silent."""
        metadata, routes, me = group.metadata, self._service.routes, self._service.store
        replicas = dict.fromkeys((*routes.replicas(metadata.table, metadata.partition), me), "") | {me: taken}
        unanswered = [store for store in replicas if store != me]
        deadline = self._clock.now() + _ANSWER_TIMEOUT
        while unanswered and self._clock.now() <= deadline:
            for store in list(unanswered):
                status = await self._status(group, store)
                if status is None or status.damage:
                    unanswered.remove(store)
                elif index in status.hashes:
                    replicas[store] = status.hashes[index]
                    unanswered.remove(store)
            if unanswered:
                await self._clock.sleep(_POLL_SECONDS)
        return Verified(metadata.partition, index, taken, replicas)

    async def _status(self, group: Group, store: str) -> GroupStatus | None:
        address = self._service.routes.address(store)
        try:
            return (
                await self._peers.status(address, group.metadata.table, group.metadata.partition) if address else None
            )
        except StoreError as error:
            log.info(
                "cannot get the status of the replica on store %s: %s", store, error, extra=group.metadata.fields()
            )
            return None

    # Repair

    async def _repair(self, group: Group, found: Verified, store: str) -> None:
        metadata = group.metadata
        log.warning(
            "rebuilding the replica on %s: its hash at index %d is %s, and most replicas' is %s",
            *(store, found.index, found.replicas[store], found.majority),
            extra=metadata.fields(),
        )
        try:
            if store == self._service.store:
                # The next leader restores it.
                await self._service.rebuild(group, found.index, found.majority)
                return
            request = RebuildRequest(
                table=metadata.table, partition=metadata.partition, index=found.index, hash=found.majority
            )
            await self._peers.rebuild(self._service.routes.address(store), request)
        except StoreError as error:
            log.warning("cannot rebuild the replica on %s: %s", store, error, extra=metadata.fields())
            return
        if await self._is_restored(group, store):
            self._service.state_machine.counters["healed_replicas"] += 1
            log.warning("the replica on %s is restored", store, extra=metadata.fields())

    async def _is_restored(self, group: Group, store: str) -> bool:
        deadline = self._clock.now() + _RESTORE_TIMEOUT
        while self._clock.now() < deadline:
            status = await self._status(group, store)
            if status is not None and not status.damage:
                return True
            await self._clock.sleep(_POLL_SECONDS)
        log.error(
            "store %s did not restore its replica within %g s", store, _RESTORE_TIMEOUT, extra=group.metadata.fields()
        )
        return False
