"""What is done about a replica whose rows are not what they should be, though nothing is known to be damaged.

After a comparison the leader asks every replica for the hash it took. A replica is built anew, from the others, where

    all of them answer             one that is away, behind or just being restored counts for nobody
    more than half are the same    else nobody knows who is right: people have to look
    the same was found twice       giving rows up is not undone, so a second barrier has to say so, too
    it does not lead               a leader lets another replica lead first, and has the same done to itself

and then one replica of one partition at a time, waiting until it has its rows again, and a partition not twice within
ten minutes. Raft's log is none of this: a replica that is built anew goes on voting.
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

__all__ = ["AGAIN_SECONDS", "PeerStores", "ReplicaRepairer"]

log = logging.getLogger(__name__)

AGAIN_SECONDS: Final = 10.0
"""After which a difference is looked at once more."""
_REST_SECONDS: Final = 600.0
_ANSWER_SECONDS: Final = 10.0
_RESTORE_SECONDS: Final = 600.0
_POLL_SECONDS: Final = 0.5


class PeerStores(Protocol):
    """The other stores; `StoreError` where one does not answer, or refuses."""

    async def status(self, address: str, table: str, partition: int) -> GroupStatus | None:
        """What a store has of a partition; None where it has nothing."""
        ...

    async def rebuild(self, address: str, request: RebuildRequest) -> None:
        """Have a store build its replica anew."""
        ...


class ReplicaRepairer:
    """Judges what replicas of partitions that are led here have, and has those that are alone built anew."""

    def __init__(
        self, service: StoreService, others: PeerStores, *, heals: bool = True, clock: Clock | None = None
    ) -> None:
        """Without `heals` differences are told, and nothing is done about them."""
        self._service = service
        self._others = others
        self._heals = heals
        self._clock = clock or SystemClock()
        self._suspects: dict[int, set[str]] = {}
        self._healed_at: dict[int, float] = {}

    async def judge(self, group: Group, index: int, taken: str) -> bool:
        """Act on what replicas have at a barrier, where our hash is `taken`; returns whether to compare again soon."""
        found = await self._gather(group, index, taken)
        suspects = self._suspects.pop(group.number, set())
        self._service.set_comparison_problem(group, self._verdict(found))
        if not found.differing or not self._heals:
            return False
        if found.silent or not found.wrong:
            return bool(found.silent)
        self._suspects[group.number] = set(found.wrong)
        confirmed = [store for store in found.wrong if store in suspects]
        if confirmed and self._is_rested(group):
            self._healed_at[group.number] = self._clock.now()
            # Others first: whoever leads can have them restored.
            await self._heal(group, found, min(confirmed, key=lambda store: store == self._service.store))
        return True

    def _is_rested(self, group: Group) -> bool:
        at = self._healed_at.get(group.number)
        return at is None or self._clock.now() - at >= _REST_SECONDS

    def _verdict(self, found: Verified) -> str:
        """What the leader has to say against its own rows."""
        if not found.differing or found.silent:
            return ""
        at = f"at index {found.index}"
        if not found.majority:
            held = "; ".join(f"{store} has {value}" for store, value in sorted(found.replicas.items()))
            return f"{at} no hash of the rows has a majority ({held}): see who is right, and drain the others"
        if self._service.store in found.wrong:
            return f"{at} the hash of the rows is {found.leader}, and most replicas' is {found.majority}"
        return ""

    # Asking

    async def _gather(self, group: Group, index: int, taken: str) -> Verified:
        """Ask until all have answered; those who cannot be reached, or are late, count as silent."""
        metadata, routes, me = group.metadata, self._service.routes, self._service.store
        replicas = dict.fromkeys((*routes.replicas(metadata.table, metadata.partition), me), "") | {me: taken}
        asked = [store for store in replicas if store != me]
        until = self._clock.now() + _ANSWER_SECONDS
        while asked and self._clock.now() <= until:
            for store in list(asked):
                status = await self._status(group, store)
                if status is None or status.damage:
                    asked.remove(store)
                elif index in status.hashes:
                    replicas[store] = status.hashes[index]
                    asked.remove(store)
            if asked:
                await self._clock.sleep(_POLL_SECONDS)
        return Verified(metadata.partition, index, taken, replicas)

    async def _status(self, group: Group, store: str) -> GroupStatus | None:
        address = self._service.routes.address(store)
        try:
            return (
                await self._others.status(address, group.metadata.table, group.metadata.partition) if address else None
            )
        except StoreError as error:
            log.info("store %s does not say what it has: %s", store, error, extra=group.metadata.fields())
            return None

    # Healing

    async def _heal(self, group: Group, found: Verified, store: str) -> None:
        metadata = group.metadata
        log.warning(
            "the replica on %s is built anew: its hash at index %d is %s, and most replicas' is %s",
            *(store, found.index, found.replicas[store], found.majority),
            extra=metadata.fields(),
        )
        try:
            if store == self._service.store:
                # Whoever leads next has it restored.
                await self._service.rebuild(group, found.index, found.majority)
                return
            request = RebuildRequest(
                table=metadata.table, partition=metadata.partition, index=found.index, hash=found.majority
            )
            await self._others.rebuild(self._service.routes.address(store), request)
        except StoreError as error:
            log.warning("the replica on %s could not be given up: %s", store, error, extra=metadata.fields())
            return
        if await self._is_restored(group, store):
            self._service.state_machine.counters["healed_replicas"] += 1
            log.warning("the replica on %s has its rows again", store, extra=metadata.fields())

    async def _is_restored(self, group: Group, store: str) -> bool:
        until = self._clock.now() + _RESTORE_SECONDS
        while self._clock.now() < until:
            status = await self._status(group, store)
            if status is not None and not status.damage:
                return True
            await self._clock.sleep(_POLL_SECONDS)
        log.error(
            "store %s has not restored its replica within %g s", store, _RESTORE_SECONDS, extra=group.metadata.fields()
        )
        return False
