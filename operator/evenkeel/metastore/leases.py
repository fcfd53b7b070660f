"""Keeping a lease alive for as long as its holder lives."""

from __future__ import annotations

from evenkeel.errors import LeaseNotFoundError, UnreachableError
from evenkeel.metastore.metastore_api import Lease
from evenkeel.runtime.clock import Clock, SystemClock

__all__ = ["keep_alive"]

_REFRESHES_PER_TTL = 3
"""Two may be lost before the lease is."""


async def keep_alive(lease: Lease, *, clock: Clock | None = None) -> None:
    """Refresh `lease` until it is lost, then raise LeaseNotFoundError; run it as a task and cancel it to stop.

    A metastore that does not answer is asked again until the time to live, counted from before the last refresh
    that succeeded, is over: from then on the keys may be gone, and whoever relies on them has to stop.
    """
    clock = clock or SystemClock()
    expires = clock.now() + lease.ttl
    while clock.now() < expires:
        asked = clock.now()
        try:
            if not await lease.refresh():
                break
            expires = asked + lease.ttl
        except UnreachableError:
            pass
        await clock.sleep(lease.ttl / _REFRESHES_PER_TTL)
    raise LeaseNotFoundError(f"lease {lease.id:x} is lost: it expired or was revoked; grant a new one")
