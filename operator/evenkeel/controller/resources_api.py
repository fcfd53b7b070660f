"""What the controller asks of whoever keeps resources: the API server of Kubernetes, or etcd itself in local mode.

Whoever implements it answers from what is true now or was a moment ago, but always knows of its own writes: a status
that was set is the one that is read next. UnreachableError from any of these means: later.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from evenkeel.model.partitionassignment import PartitionAssignment, PartitionAssignmentStatus
from evenkeel.model.rebalanceplan import RebalancePlan, RebalancePlanStatus
from evenkeel.model.storecluster import StoreCluster, StoreClusterStatus
from evenkeel.model.table import Table, TableStatus

__all__ = ["Resources", "Status", "WithStatus"]

WithStatus = StoreCluster | Table | PartitionAssignment | RebalancePlan
Status = StoreClusterStatus | TableStatus | PartitionAssignmentStatus | RebalancePlanStatus


class Resources(Protocol):
    """The resources of one StoreCluster."""

    def changes(self) -> AsyncIterator[str | None]:
        """What to look at again: a table by its name, or everything (None), as at the beginning.

        Changes of statuses alone are not told: the controller writes these itself, and would never come to rest.
        """
        ...

    async def store_cluster(self) -> StoreCluster | None:
        """The StoreCluster itself; None where there is none (any more)."""
        ...

    async def tables(self) -> Sequence[Table]:
        """Its tables, those that are being deleted included."""
        ...

    async def table(self, name: str) -> Table | None:
        """One of its tables; None where there is none of that name."""
        ...

    async def knows(self, table: str) -> bool:
        """Whether there is a table of that name, this StoreCluster's or another's."""
        ...

    async def assignments(self, table: str) -> Sequence[PartitionAssignment]:
        """The PartitionAssignments of a table, by name."""
        ...

    async def plans(self, table: str) -> Sequence[RebalancePlan]:
        """The RebalancePlans of a table, by name."""
        ...

    async def set_status(self, resource: WithStatus, status: Status) -> None:
        """Write a status; nothing happens where the resource is gone."""
        ...

    async def ensure(self, resource: PartitionAssignment | RebalancePlan) -> None:
        """Make a resource that the controller itself wants, where it is not there."""
        ...

    async def remove(self, plan: RebalancePlan) -> None:
        """Take away an object of a plan that is long over."""
        ...

    async def create(self, table: Table) -> None:
        """Make a Table again that was deleted; nothing happens where there is one of that name."""
        ...

    async def strike_off(self, annotation: str, entry: str) -> None:
        """Take an entry off an annotation of the StoreCluster that lists some, separated by commas."""
        ...

    async def gone(self, table: Table) -> None:
        """Nothing is left of a table that is being deleted, or only what is kept: let the resource go, and its own."""
        ...
