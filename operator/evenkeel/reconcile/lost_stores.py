"""Decides when the replicas of a lost store are replaced.

A store whose lease ends is *lost since* that moment. A table replaces the store's replicas only after its `lostAfter`:
copying is expensive, and most stores come back. The delays of all stores that are not replaced yet restart once

- if more than a third of the stores are lost together, or
- if the stores were not checked for a while, because the operator or etcd was unavailable.

In both cases a failure of the check itself is more likely than the loss of so many stores.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from evenkeel.protocol.records import StoreState
from evenkeel.reconcile.known_stores import KnownStores

__all__ = ["decide_replacement", "lost_together", "next_replacement"]

TOGETHER_SECONDS: Final = 60.0
"""Stores that are lost within this time are lost together."""


def decide_replacement(
    state: StoreState, lost_after: Mapping[str, float], *, now: float, restart_delay: bool
) -> StoreState:
    """Return the state of a lost store with every table that replaces its replicas from now on.

    `lost_after` is each table's delay in seconds. A table that has begun to replace replicas continues.
    """
    awaited = any(not state.given_up(table) for table in lost_after)
    since = now if state.lost_since is None or (restart_delay and awaited) else state.lost_since
    overdue = {table for table, seconds in lost_after.items() if now - since >= seconds}
    begun = set(state.replace_in) & lost_after.keys()
    return msgspec.structs.replace(state, lost_since=since, replace_in=tuple(sorted(overdue | begun)))


def lost_together(known: KnownStores, now: float) -> bool:
    """Whether stores are lost now that are, with those lost shortly before, more than a third of all stores."""
    awaited = {name: known.states[name] for name in known.lost if not known.states[name].replace_in}
    if all(state.lost_since is not None for state in awaited.values()):
        return False
    recent = [s for s in awaited.values() if s.lost_since is None or now - s.lost_since <= TOGETHER_SECONDS]
    return 3 * len(recent) > len(known.registered.keys() | awaited.keys())


def next_replacement(known: KnownStores, lost_after: Mapping[str, float]) -> float | None:
    """Return when the next table's delay for a lost store ends; None if no table waits for one."""
    lost = (known.states[name] for name in known.lost)
    ends = [
        state.lost_since + seconds
        for state in lost
        if state.lost_since is not None
        for table, seconds in lost_after.items()
        if not state.given_up(table)
    ]
    return min(ends, default=None)
