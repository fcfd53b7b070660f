"""What a rebalancer is, what it is given, and what comes out of one run.

`compute` answers the whole assignment wanted now; how to get there is not its business. `init` is called once on
every instance, before `compute`. An instance lives for one computation only, in a process of its own where the
class is a user's, so anything that must survive is handed to `context.save` and comes back from `context.load` next
time, on whichever operator that runs. A first run, or one after the table was made anew, loads None.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from evenkeel.errors import RebalancerError
from evenkeel.model.views import Assignment, CurrentState, StoresView, TableView

__all__ = ["MAX_CONTEXT", "RebalanceContext", "RebalanceResult", "Rebalancer"]

MAX_CONTEXT = 256 * 1024
"""Bytes of JSON a rebalancer may keep per table: etcd's values should stay far below its limit of 1.5 MiB."""


class RebalanceContext:
    """What `init` is given: the table's `rebalancer.config`, and a place to keep what the next run should know."""

    def __init__(self, config: Mapping[str, Any], saved: bytes | None = None) -> None:
        self.config = config
        self.saved = saved
        """JSON as the metastore keeps it; None where nothing was ever saved."""

    def load(self) -> Any:
        """What was last saved by this or an earlier run; None where nothing was."""
        return None if self.saved is None else msgspec.json.decode(self.saved)

    def save(self, value: object) -> None:
        """Keep a JSON value for the next run. It is stored only if this run's assignment is accepted."""
        encoded = msgspec.json.encode(value)
        if len(encoded) > MAX_CONTEXT:
            raise RebalancerError(f"context of {len(encoded)} bytes; allowed: at most {MAX_CONTEXT} bytes of JSON")
        self.saved = encoded


class Rebalancer(Protocol):
    """A placement policy."""

    def init(self, context: RebalanceContext) -> None:
        """Prepare; keep `context` to load and save state."""
        ...

    def compute(self, table: TableView, previous: Assignment, stores: StoresView, current: CurrentState) -> Assignment:
        """The assignment wanted now, given what was wanted last and what is true."""
        ...


class RebalanceResult(msgspec.Struct, frozen=True, kw_only=True):
    """A validated assignment, and what the caller is to store under `rebalancer.context/<table>` with it."""

    assignment: Assignment
    context: bytes | None
    """None where nothing was ever saved."""
