"""`balanced`, the default: zones, then even shares, then the fewest moves; the planner does the work."""

from __future__ import annotations

from evenkeel.model.views import Assignment, CurrentState, StoresView, TableView
from evenkeel.planner.balanced_plan import plan
from evenkeel.rebalancers.rebalancer_api import RebalanceContext

__all__ = ["Balanced"]


class Balanced:
    """Stateless: all it goes by is in its arguments."""

    def init(self, context: RebalanceContext) -> None:
        """Nothing to prepare."""

    def compute(self, table: TableView, previous: Assignment, stores: StoresView, current: CurrentState) -> Assignment:
        """The planner's answer."""
        return plan(table, previous, stores, current)
