"""The modes SemiAuto and Customized: users choose stores in PartitionAssignments.

*SemiAuto.* The user lists stores in order of preference, as many as desired. The first `replicas` usable stores hold
the partition; the first one leads, and the first `consensusSize` vote. If too few are usable, lost or draining stores
that hold the partition stay as its last members: removing them would not make the group safer, and would cost a copy
when they return.

*Customized.* The user lists exactly `replicas` stores. A lost or draining store may stay in the list but not be added.

In both modes a partition without a choice stays where it is, and a new table needs a choice for every partition.
"""

from __future__ import annotations

from collections.abc import Mapping

from evenkeel.errors import RebalancerError
from evenkeel.model.views import Assignment, Choice, CurrentState, StoresView, TableView, slice_name
from evenkeel.planner.placement_rules import exclusion
from evenkeel.rebalancers.rebalancer_api import RebalanceContext

__all__ = ["Customized", "SemiAuto"]


class SemiAuto:
    """Places replicas by users' preference lists."""

    def __init__(self, choices: Mapping[int, Choice]) -> None:
        self._choices = choices

    def init(self, context: RebalanceContext) -> None:
        """Do nothing."""

    def compute(self, table: TableView, previous: Assignment, stores: StoresView, current: CurrentState) -> Assignment:
        """Return the first usable stores of each list."""
        excluded = {store.name: exclusion(store, table) for store in stores.stores}
        rows = [
            _preferred(table, partition, order, previous=previous, excluded=excluded)
            for partition, order in enumerate(_orders(table, previous, self._choices))
        ]
        return Assignment.of(rows, voters=table.consensus_size)


class Customized:
    """Places replicas exactly as users list them."""

    def __init__(self, choices: Mapping[int, Choice]) -> None:
        self._choices = choices

    def init(self, context: RebalanceContext) -> None:
        """Do nothing."""

    def compute(self, table: TableView, previous: Assignment, stores: StoresView, current: CurrentState) -> Assignment:
        """Return the users' lists, leader first."""
        for partition, choice in self._choices.items():
            _check_leader_votes(table, partition, choice)
        return Assignment.of(_orders(table, previous, self._choices), voters=table.consensus_size)


def _orders(table: TableView, previous: Assignment, choices: Mapping[int, Choice]) -> list[tuple[str, ...]]:
    """Return per partition the user's list, leader first, or the previous stores."""
    beyond = [partition for partition in sorted(choices) if partition >= table.partitions]
    if beyond:
        raise RebalancerError(
            f"table {table.name} has the partitions 0 to {table.partitions - 1}, but a PartitionAssignment lists"
            f" partition {beyond[0]}; remove it there"
        )
    held = previous.partitions == table.partitions
    orders = [
        _leader_first(choices[partition]) if partition in choices else previous.stores_of(partition) if held else ()
        for partition in range(table.partitions)
    ]
    missing = [partition for partition, order in enumerate(orders) if not order]
    if missing:
        raise RebalancerError(
            f"partition {missing[0]} of table {table.name} has no stores ({len(missing)} of {table.partitions}"
            f" partitions have none); list them in PartitionAssignment {slice_name(table.name, missing[0])}"
        )
    return orders


def _leader_first(choice: Choice) -> tuple[str, ...]:
    if choice.leader is None:
        return choice.stores
    return (choice.leader, *(store for store in choice.stores if store != choice.leader))


def _check_leader_votes(table: TableView, partition: int, choice: Choice) -> None:
    voters = choice.stores[: table.consensus_size]
    if choice.leader is not None and choice.leader not in voters:
        raise RebalancerError(
            f"partition {partition} of table {table.name}: leader {choice.leader} is a learner, because only the first"
            f" {table.consensus_size} stores vote ({', '.join(voters)}); move it to the front"
        )


def _preferred(
    table: TableView,
    partition: int,
    order: tuple[str, ...],
    *,
    previous: Assignment,
    excluded: Mapping[str, str | None],
) -> tuple[str, ...]:
    usable = [store for store in order if store in excluded and excluded[store] is None]
    row = usable[: table.replicas]
    if len(row) < table.replicas:
        held = previous.stores_of(partition) if partition < previous.partitions else ()
        row += [store for store in order if store in held and store not in row][: table.replicas - len(row)]
    if len(row) < table.replicas:
        missing = ", ".join(f"{store} {excluded.get(store, 'does not exist')}" for store in order if store not in row)
        raise RebalancerError(
            f"partition {partition} of table {table.name} needs {table.replicas} stores, but its list gives {len(row)}"
            + (f": {missing}" if missing else "")
            + "; list more stores"
        )
    return tuple(row)
