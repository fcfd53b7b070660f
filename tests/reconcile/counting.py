"""A user-defined rebalancer that counts its runs."""

from __future__ import annotations

from evenkeel.model.views import Assignment, CurrentState, StoresView, TableView
from evenkeel.planner import plan
from evenkeel.rebalancers.rebalancer_api import RebalanceContext


class Counting:
    """`balanced`, with a counter in its context."""

    def init(self, context: RebalanceContext) -> None:
        """Continue the count of the last run."""
        counted = context.load()
        context.save(1 + (counted if isinstance(counted, int) else 0))

    def compute(self, table: TableView, previous: Assignment, stores: StoresView, current: CurrentState) -> Assignment:
        """Return the result of `balanced`."""
        return plan(table, previous, stores, current)
