"""The user-defined rebalancer of Apache Helix: lock i belongs to live store i modulo the number of live stores."""

from evenkeel.model.views import Assignment, CurrentState, StoresView, TableView
from evenkeel.rebalancers.rebalancer_api import RebalanceContext


class LockManager:
    """A rebalancer without configuration and state."""

    def init(self, context: RebalanceContext) -> None:
        """Do nothing; there is no configuration."""

    def compute(self, table: TableView, previous: Assignment, stores: StoresView, current: CurrentState) -> Assignment:
        """Assign locks in turn to the live stores in name order; no store holds a lock twice."""
        live = [store.name for store in stores.live()]
        rows = [
            [live[(lock + holder) % len(live)] for holder in range(table.replicas)] for lock in range(table.partitions)
        ]
        return Assignment.of(rows, voters=table.consensus_size)
