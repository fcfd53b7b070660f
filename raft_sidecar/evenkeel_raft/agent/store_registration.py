"""The store's registration: its record, bound to a lease that lives as long as the process does.

A store's name belongs to one live process. A predecessor on the same volume is replaced at once: the volume has one
owner, which is us. One on another volume is waited for, because it may be alive, and whoever is registered is who plans
count on. Once registered, a process that finds another one of its own volume in its place does not fight for it.

The record announces which cluster versions the store can work with. A store that cannot work with the present one does
not register, and the transaction compares the version, so that it cannot rise in between.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

import msgspec

from evenkeel.errors import LeaseNotFoundError, MalformedRecordError, UnreachableError
from evenkeel.metastore.leases import keep_alive
from evenkeel.metastore.metastore_api import Compare, KeyValue, Lease, Put, Txn, unchanged
from evenkeel.protocol.records import StoreRecord, decode, encode
from evenkeel.runtime.backoff import Backoff
from evenkeel_raft.agent.agent_context import Context

__all__ = ["Registration"]

log = logging.getLogger(__name__)


class Registration:
    """Keeps `stores/<s>` while the process lives."""

    def __init__(self, context: Context, *, on_admitted: Callable[[], None]) -> None:
        self._context = context
        self._on_admitted = on_admitted
        self._key = context.keys.store(context.me.store)
        self._value = b""
        self._changed = asyncio.Event()
        self._kv: KeyValue | None = None
        self._seen = 0
        self._put_at = 0
        self._own: set[int] = set()
        self._left = False
        self.lease: Lease | None = None
        """While registered, as far as is known."""
        self.admitted = False
        """Whether this process is, or was last, the one registered under its name."""
        self.problem = "not registered yet"
        """Why it is not registered; empty if it is."""

    def see(self, kv: KeyValue | None, *, at: int) -> None:
        """The key as of a revision."""
        self._kv, self._seen = kv, at
        self._changed.set()

    def announce(self) -> None:
        """What the store can work with may have changed: write it where it has."""
        self._changed.set()

    async def run(self) -> None:
        """Register, and again whenever that is lost, until cancelled."""
        settings = self._context.settings
        backoff = Backoff(clock=self._context.clock, rng=self._context.rng, first=settings.retry_seconds)
        while not self._left:
            try:
                if await self._register():
                    backoff.reset()
                    await self._hold()
            except LeaseNotFoundError as error:
                self.problem = str(error)
            except UnreachableError as error:
                self.problem = f"not registered: {error}"
                await backoff.wait()
            finally:
                self.lease = None

    async def leave(self) -> None:
        """End the registration now, for good; where the metastore does not answer, it ends by itself."""
        self._left = True
        lease, self.lease, self.problem = self.lease, None, "the store has left"
        self._changed.set()
        if lease is not None:
            with contextlib.suppress(UnreachableError):
                await lease.revoke()

    async def _register(self) -> bool:
        """Take the name if it is free, else wait for a change; whether it was taken."""
        context = self._context
        self._changed.clear()
        kv = await context.metastore.get(self._key)
        self.problem = self._obstacle(kv)
        if self.problem:
            self.admitted = False
            log.warning("%s", self.problem)
            await self._changed.wait()
            return False
        lease = await context.metastore.lease(context.settings.lease_seconds)
        self._own.add(lease.id)
        if not await self._put(lease, unchanged(self._key, kv)):
            return False
        self.lease, self.admitted = lease, True
        self._on_admitted()
        return True

    async def _put(self, lease: Lease, compare: Compare) -> bool:
        """Write the record if nothing has changed; whether it was written."""
        context, value = self._context, self._record()
        version = await context.metastore.get(context.keys.version)
        context.version.see(version)
        compares = (compare, unchanged(context.keys.version, version))
        result = await context.metastore.txn(Txn(compares, (Put(self._key, value, lease.id),)))
        context.counters.transactions["register", "done" if result.succeeded else "refused"] += 1
        if result.succeeded:
            self._value, self._put_at = value, result.revision
        return result.succeeded

    def _record(self) -> bytes:
        context = self._context
        return encode(msgspec.structs.replace(context.me.record, versions=context.version.announced))

    async def _announce(self) -> None:
        """Write the record again where it says something else now; refused, the watch is about to say why."""
        if self.lease is not None and self._record() != self._value:
            await self._put(self.lease, Compare(self._key, "mod", "=", self._put_at))

    async def _hold(self) -> None:
        """Refresh the lease until the registration is no longer ours."""
        assert self.lease is not None
        alive = asyncio.ensure_future(keep_alive(self.lease, clock=self._context.clock))
        try:
            while not self._left and self._ours():
                self._changed.clear()
                await self._announce()
                changed = asyncio.ensure_future(self._changed.wait())
                await asyncio.wait({alive, changed}, return_when=asyncio.FIRST_COMPLETED)
                changed.cancel()
                if alive.done():
                    alive.result()
        finally:
            alive.cancel()
            await asyncio.gather(alive, return_exceptions=True)

    def _ours(self) -> bool:
        """Whether the key is as we put it, or the watch has yet to show that."""
        assert self.lease is not None
        return self._seen < self._put_at or (self._kv is not None and self._kv.lease == self.lease.id)

    def _obstacle(self, kv: KeyValue | None) -> str:
        """Why the name cannot be taken now; empty if it can."""
        if kv is None or not kv.lease or kv.lease in self._own:
            return ""
        me = self._context.me
        try:
            volume = decode(StoreRecord, kv.value, key=kv.key).volume
        except MalformedRecordError as error:
            return str(error)
        if volume != me.volume:
            return (
                f"another process is registered as store {me.store}, with volume {volume} instead of {me.volume}: "
                "waiting for it to end"
            )
        if self.admitted:
            return f"another process has registered as store {me.store} with the same volume: waiting for it to end"
        return ""
