"""Helix's user-defined rebalancer: lock i belongs to live store number i modulo their count."""

from evenkeel.model.views import Assignment, CurrentState, StoresView, TableView
from evenkeel.rebalancers.rebalancer_api import RebalanceContext


class LockManager:
    """Needs neither configuration nor memory."""

    def init(self, context: RebalanceContext) -> None:
        """Nothing to prepare."""

    def compute(self, table: TableView, previous: Assignment, stores: StoresView, current: CurrentState) -> Assignment:
        """Locks in turn to the live stores in name order; each store holds a given lock once."""
        live = [store.name for store in stores.live()]
        rows = [
            [live[(lock + holder) % len(live)] for holder in range(table.replicas)] for lock in range(table.partitions)
        ]
        return Assignment.of(rows, voters=table.consensus_size)
