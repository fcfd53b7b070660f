"""What the controller asks of whoever keeps resources: the API server of Kubernetes, or etcd itself in local mode."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from evenkeel.model.partitionassignment import PartitionAssignment, PartitionAssignmentStatus
from evenkeel.model.rebalanceplan import RebalancePlan, RebalancePlanStatus
from evenkeel.model.storecluster import StoreCluster, StoreClusterStatus
from evenkeel.model.table import Table, TableStatus

__all__ = ["Resources"]


class Resources(Protocol):
    """The resources of one StoreCluster."""

    def changes(self) -> AsyncIterator[None]:
        """Once at the beginning, and again after every change of a resource."""
        ...

    async def store_cluster(self) -> StoreCluster | None:
        """The StoreCluster itself; None where there is none (any more)."""
        ...

    async def tables(self) -> Sequence[Table]:
        """Its tables, those that are being deleted included."""
        ...

    async def assignments(self, table: str) -> Sequence[PartitionAssignment]:
        """The PartitionAssignments of a table, by name."""
        ...

    async def plans(self, table: str) -> Sequence[RebalancePlan]:
        """The RebalancePlans of a table, by name."""
        ...

    async def set_status(
        self,
        resource: StoreCluster | Table | PartitionAssignment | RebalancePlan,
        status: StoreClusterStatus | TableStatus | PartitionAssignmentStatus | RebalancePlanStatus,
    ) -> None:
        """Write a status; nothing happens where the resource is gone."""
        ...

    async def ensure(self, resource: PartitionAssignment | RebalancePlan) -> None:
        """Make a resource that the controller itself wants, where it is not there."""
        ...

    async def gone(self, table: Table) -> None:
        """Nothing is left of a table that is being deleted: let the resource go, and those made for it."""
        ...
