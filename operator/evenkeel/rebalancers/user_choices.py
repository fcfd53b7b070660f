"""SemiAuto and Customized: users say where replicas go, in PartitionAssignments.

*SemiAuto.* A list of stores in order of preference, as long as the user likes. The first `replicas` of them that
may hold replicas do; the first leads, the first `consensusSize` vote. Where too few are left, the ones that are
lost or draining but hold the partition stay its last members: taking them out would leave the group no safer and
cost a copy when they return.

*Customized.* The exact set: as many stores as `replicas` says, so that the Table never claims a number that is not
so. A store that is lost or draining may stay in a set but not come into one.

In both modes a partition nobody speaks of stays where it is, and a new table needs a word on every partition.
"""

from __future__ import annotations

from collections.abc import Mapping

from evenkeel.errors import RebalancerError
from evenkeel.model.views import Assignment, Choice, CurrentState, StoresView, TableView, slice_name
from evenkeel.planner.placement_rules import exclusion
from evenkeel.rebalancers.rebalancer_api import RebalanceContext

__all__ = ["Customized", "SemiAuto"]


class SemiAuto:
    """Users' preference lists."""

    def __init__(self, choices: Mapping[int, Choice]) -> None:
        self._choices = choices

    def init(self, context: RebalanceContext) -> None:
        """Nothing to prepare."""

    def compute(self, table: TableView, previous: Assignment, stores: StoresView, current: CurrentState) -> Assignment:
        """The first usable stores of every list."""
        excluded = {store.name: exclusion(store, table) for store in stores.stores}
        rows = [
            _preferred(table, partition, order, previous=previous, excluded=excluded)
            for partition, order in enumerate(_orders(table, previous, self._choices))
        ]
        return Assignment.of(rows, voters=table.consensus_size)


class Customized:
    """Users' exact sets."""

    def __init__(self, choices: Mapping[int, Choice]) -> None:
        self._choices = choices

    def init(self, context: RebalanceContext) -> None:
        """Nothing to prepare."""

    def compute(self, table: TableView, previous: Assignment, stores: StoresView, current: CurrentState) -> Assignment:
        """What the users wrote, leader first."""
        for partition, choice in self._choices.items():
            _check_leader_votes(table, partition, choice)
        return Assignment.of(_orders(table, previous, self._choices), voters=table.consensus_size)


def _orders(table: TableView, previous: Assignment, choices: Mapping[int, Choice]) -> list[tuple[str, ...]]:
    """Per partition the user's list, leader first, or what there was."""
    beyond = [partition for partition in sorted(choices) if partition >= table.partitions]
    if beyond:
        raise RebalancerError(
            f"table {table.name} has the partitions 0 to {table.partitions - 1}, but a PartitionAssignment speaks of"
            f" partition {beyond[0]}; take it out"
        )
    held = previous.partitions == table.partitions
    orders = [
        _leader_first(choices[partition]) if partition in choices else previous.stores_of(partition) if held else ()
        for partition in range(table.partitions)
    ]
    silent = [partition for partition, order in enumerate(orders) if not order]
    if silent:
        raise RebalancerError(
            f"nobody says where partition {silent[0]} of table {table.name} goes ({len(silent)} of {table.partitions}"
            f" partitions): write it into PartitionAssignment {slice_name(table.name, silent[0])}"
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
        missing = ", ".join(f"{store} {excluded.get(store, 'is not known')}" for store in order if store not in row)
        raise RebalancerError(
            f"partition {partition} of table {table.name} needs {table.replicas} stores, but its list gives {len(row)}"
            + (f": {missing}" if missing else "")
            + "; name more stores"
        )
    return tuple(row)
