"""The interface of a rebalancer.

`init` is called once on each instance, before `compute`. `compute` returns the whole desired assignment; the operator
orders and executes the moves. An instance exists for one computation only, and a user's class runs in a child process.
State for the next run goes through `context.save` and `context.load`; it is kept in the metastore, so it follows the
operator to another process. On the first run, or after the table was recreated, `load` returns None.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from evenkeel.errors import RebalancerError
from evenkeel.model.views import Assignment, CurrentState, StoresView, TableView

__all__ = ["MAX_CONTEXT", "RebalanceContext", "RebalanceResult", "Rebalancer"]

MAX_CONTEXT = 256 * 1024
"""Bytes of JSON that a rebalancer may save per table; well below etcd's limit of 1.5 MiB."""


class RebalanceContext:
    """The argument of `init`: the table's `rebalancer.config`, and state that is kept between runs."""

    def __init__(self, config: Mapping[str, Any], saved: bytes | None = None) -> None:
        self.config = config
        self.saved = saved
        """The saved state as JSON; None if nothing was ever saved."""

    def load(self) -> Any:
        """Return the value last saved by this or an earlier run, or None."""
        return None if self.saved is None else msgspec.json.decode(self.saved)

    def save(self, value: object) -> None:
        """Save a JSON value for the next run. It is stored only if this run's assignment is accepted."""
        encoded = msgspec.json.encode(value)
        if len(encoded) > MAX_CONTEXT:
            raise RebalancerError(f"context: got {len(encoded)} bytes; allowed: at most {MAX_CONTEXT} bytes of JSON")
        self.saved = encoded


class Rebalancer(Protocol):
    """A placement policy."""

    def init(self, context: RebalanceContext) -> None:
        """Read the configuration; keep `context` to load and save state."""
        ...

    def compute(self, table: TableView, previous: Assignment, stores: StoresView, current: CurrentState) -> Assignment:
        """Return the desired assignment, given the previous one, the stores and the current state."""
        ...


class RebalanceResult(msgspec.Struct, frozen=True, kw_only=True):
    """A validated assignment, and the context that the caller stores with it under `rebalancer.context/<table>`."""

    assignment: Assignment
    context: bytes | None
    """None if nothing was ever saved."""
