"""A rebalancer of a user's that counts how often it was asked."""

from __future__ import annotations

from evenkeel.model.views import Assignment, CurrentState, StoresView, TableView
from evenkeel.planner import plan
from evenkeel.rebalancers.rebalancer_api import RebalanceContext


class Counting:
    """`balanced`, with a memory."""

    def init(self, context: RebalanceContext) -> None:
        """Count on from the last run."""
        counted = context.load()
        context.save(1 + (counted if isinstance(counted, int) else 0))

    def compute(self, table: TableView, previous: Assignment, stores: StoresView, current: CurrentState) -> Assignment:
        """What `balanced` answers."""
        return plan(table, previous, stores, current)
