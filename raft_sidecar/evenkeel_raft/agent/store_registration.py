"""Registers the store: its record, bound to a lease that lives as long as the process.

A store's name belongs to one live process. A process replaces a predecessor on the same volume at once, because the
volume has one owner. It waits for a process on another volume, which may be alive and which plans count on. A
registered process that is replaced by another process on the same volume does not take the name back.

The record announces the cluster versions that the store supports. A store that does not support the current version
does not register, and the transaction compares the version, so that it cannot rise in between.
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
from evenkeel_raft.agent.agent_context import AgentContext

__all__ = ["StoreRegistration"]

log = logging.getLogger(__name__)


class StoreRegistration:
    """Keeps `stores/<s>` while the process lives."""

    def __init__(self, context: AgentContext, *, on_registered: Callable[[], None]) -> None:
        self._context = context
        self._on_registered = on_registered
        self._key = context.keys.store(context.me.store)
        self._value = b""
        self._changed = asyncio.Event()
        self._kv: KeyValue | None = None
        self._seen = 0
        self._put_at = 0
        self._own: set[int] = set()
        self._deregistered = False
        self.lease: Lease | None = None
        """The lease while registered, as far as this process knows."""
        self.owns_name = False
        """Whether this process is the last one known to be registered under its name."""
        self.problem = "not registered yet"
        """Why the store is not registered; empty if it is."""

    def observe(self, kv: KeyValue | None, *, at: int) -> None:
        """Record the key as of a revision."""
        self._kv, self._seen = kv, at
        self._changed.set()

    def announce(self) -> None:
        """Write the record again if the supported versions have changed."""
        self._changed.set()

    async def run(self) -> None:
        """Register, and register again whenever the registration is lost, until cancelled."""
        settings = self._context.settings
        backoff = Backoff(clock=self._context.clock, rng=self._context.rng, first=settings.retry_seconds)
        while not self._deregistered:
            try:
                if await self._register():
                    backoff.reset()
                    await self._keep_alive()
            except LeaseNotFoundError as error:
                self.problem = str(error)
            except UnreachableError as error:
                self.problem = f"registration failed: {error}"
                await backoff.wait()
            finally:
                self.lease = None

    async def deregister(self) -> None:
        """End the registration for good; if the metastore does not answer, the lease expires."""
        self._deregistered = True
        lease, self.lease, self.problem = self.lease, None, "the store has deregistered"
        self._changed.set()
        if lease is not None:
            with contextlib.suppress(UnreachableError):
                await lease.revoke()

    async def _register(self) -> bool:
        """Take the name if it is free, otherwise wait for a change; return whether the name was taken."""
        context = self._context
        self._changed.clear()
        kv = await context.metastore.get(self._key)
        self.problem = self._conflict(kv)
        if self.problem:
            self.owns_name = False
            log.warning("%s", self.problem)
            await self._changed.wait()
            return False
        lease = await context.metastore.lease(context.settings.lease_seconds)
        self._own.add(lease.id)
        if not await self._put(lease, unchanged(self._key, kv)):
            return False
        self.lease, self.owns_name = lease, True
        self._on_registered()
        return True

    async def _put(self, lease: Lease, compare: Compare) -> bool:
        """Write the record if nothing has changed; return whether it was written."""
        context, value = self._context, self._record()
        version = await context.metastore.get(context.keys.version)
        context.version.observe(version)
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
        """Write the record again if it has changed; if the write is rejected, the watch is about to show why."""
        if self.lease is not None and self._record() != self._value:
            await self._put(self.lease, Compare(self._key, "mod", "=", self._put_at))

    async def _keep_alive(self) -> None:
        """Refresh the lease until the registration belongs to another process."""
        assert self.lease is not None
        alive = asyncio.ensure_future(keep_alive(self.lease, clock=self._context.clock))
        try:
            while not self._deregistered and self._ours():
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
        """Whether the key is as this process wrote it, or the watch has not shown that write yet."""
        assert self.lease is not None
        return self._seen < self._put_at or (self._kv is not None and self._kv.lease == self.lease.id)

    def _conflict(self, kv: KeyValue | None) -> str:
        """Return why the name cannot be taken now; empty if it can."""
        if kv is None or not kv.lease or kv.lease in self._own:
            return ""
        me = self._context.me
        try:
            volume = decode(StoreRecord, kv.value, key=kv.key).volume
        except MalformedRecordError as error:
            return str(error)
        if volume != me.volume:
            return (
                f"another process is registered as store {me.store} with volume {volume}, and this one has volume "
                f"{me.volume}; stop that process, or give this one another name"
            )
        if self.owns_name:
            return f"another process registered as store {me.store} with the same volume; stop one of them"
        return ""
