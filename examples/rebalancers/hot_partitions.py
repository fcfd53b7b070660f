"""Places hot partitions on fast stores and balances the others over all stores; shows `config`, `load` and `save`.

config:
  hot: [0, 3]              # partitions
  fast: [main-0, main-1]   # stores, at least as many as replicas
"""

from evenkeel.model.views import Assignment, CurrentState, StoresView, TableView
from evenkeel.planner import plan
from evenkeel.rebalancers.rebalancer_api import RebalanceContext


class HotPartitions:
    """Counts its runs, to show the state that is kept between runs."""

    def init(self, context: RebalanceContext) -> None:
        """Read the configuration; called once, before `compute`."""
        self.context = context
        self.hot: list[int] = context.config["hot"]
        self.fast: list[str] = context.config["fast"]
        self.runs = (context.load() or {"runs": 0})["runs"]

    def compute(self, table: TableView, previous: Assignment, stores: StoresView, current: CurrentState) -> Assignment:
        """Balance all partitions, then move the hot ones to the fast stores if enough of them are live."""
        balanced = plan(table, previous, stores, current)
        live = {store.name for store in stores.live()}
        fast = [name for name in self.fast if name in live]
        rows = [list(balanced.stores_of(partition)) for partition in range(table.partitions)]
        if len(fast) >= table.replicas:
            for turn, partition in enumerate(self.hot):
                turned = fast[turn % len(fast) :] + fast[: turn % len(fast)]
                rows[partition] = turned[: table.replicas]
        self.context.save({"runs": self.runs + 1})
        return Assignment.of(rows, voters=table.consensus_size)
