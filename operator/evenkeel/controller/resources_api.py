"""The resources a controller reads and writes: objects of the Kubernetes API, or keys in etcd in local mode.

Reads may be slightly outdated but always include the implementation's own writes: a status that was set is the one that
is read next. Any method may raise UnreachableError; the caller retries.
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
        """Yield what changed: the name of a table, or None for everything, as at the start.

        Changes of only a status are left out: the controller writes statuses, and would never become idle.
        """
        ...

    async def store_cluster(self) -> StoreCluster | None:
        """Return the StoreCluster, or None if it does not exist."""
        ...

    async def tables(self) -> Sequence[Table]:
        """Return the StoreCluster's tables, including those that are being deleted."""
        ...

    async def table(self, name: str) -> Table | None:
        """Return one of the StoreCluster's tables, or None if it does not exist."""
        ...

    async def table_exists(self, table: str) -> bool:
        """Return whether a Table of that name exists, in this StoreCluster or another."""
        ...

    async def assignments(self, table: str) -> Sequence[PartitionAssignment]:
        """Return the PartitionAssignments of a table."""
        ...

    async def plans(self, table: str) -> Sequence[RebalancePlan]:
        """Return the RebalancePlans of a table."""
        ...

    async def set_status(self, resource: WithStatus, status: Status) -> None:
        """Write a status; do nothing if the resource no longer exists."""
        ...

    async def ensure(self, resource: PartitionAssignment | RebalancePlan) -> None:
        """Create a resource of the controller's own, unless it exists."""
        ...

    async def remove(self, plan: RebalancePlan) -> None:
        """Delete the RebalancePlan of an old plan."""
        ...

    async def create(self, table: Table) -> None:
        """Create the Table of an undeleted table; do nothing if a Table of that name exists."""
        ...

    async def remove_from_annotation(self, annotation: str, entry: str) -> None:
        """Remove an entry from a comma-separated annotation of the StoreCluster."""
        ...

    async def finalize(self, table: Table) -> None:
        """Remove a deleted Table and the resources it owns: its data is removed or retained."""
        ...
