"""`mod`: Helix's example of a user-defined rebalancer.

The stores that may be used, in name order, are numbered 0 to n-1; partition i goes to the stores i, i+1, ...
i+replicas-1 modulo n. It needs no memory and no previous assignment, and it moves most partitions whenever n
changes: good for partitions that cost nothing to move, such as locks. It knows no zones.
"""

from __future__ import annotations

import numpy as np

from evenkeel.model.views import Assignment, CurrentState, StoresView, TableView
from evenkeel.planner.placement_rules import candidates
from evenkeel.rebalancers.rebalancer_api import RebalanceContext

__all__ = ["Mod"]


class Mod:
    """Stateless."""

    def init(self, context: RebalanceContext) -> None:
        """Nothing to prepare."""

    def compute(self, table: TableView, previous: Assignment, stores: StoresView, current: CurrentState) -> Assignment:
        """Partition i on the stores i, i+1, ... modulo their number."""
        eligible = candidates(table, stores)
        steps = np.arange(table.partitions)[:, None] + np.arange(table.replicas)
        rows = eligible.index[steps % len(eligible.index)]
        return Assignment(eligible.names, rows, voters=table.consensus_size)
