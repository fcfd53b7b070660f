"""Keep a lease alive."""

from __future__ import annotations

from evenkeel.errors import LeaseNotFoundError, UnreachableError
from evenkeel.metastore.metastore_api import Lease
from evenkeel.runtime.clock import Clock, SystemClock

__all__ = ["keep_alive"]

_REFRESHES_PER_TTL = 3
"""Two refreshes may fail before the lease expires."""


async def keep_alive(lease: Lease, *, clock: Clock | None = None) -> None:
    """Refresh `lease` until it is lost, then raise LeaseNotFoundError; run it as a task and cancel it to stop.

    While the metastore does not answer, refreshes are retried until the time to live, counted from the start of the
    last successful refresh, has passed. After that the lease's keys may be gone.
    """
    clock = clock or SystemClock()
    expires = clock.now() + lease.ttl
    while clock.now() < expires:
        started = clock.now()
        try:
            if not await lease.refresh():
                break
            expires = started + lease.ttl
        except UnreachableError:
            pass
        await clock.sleep(lease.ttl / _REFRESHES_PER_TTL)
    raise LeaseNotFoundError(f"lease {lease.id:x} is lost: it expired or was revoked; grant a new one")
