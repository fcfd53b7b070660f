"""The groups that the sidecar has opened here, and who leads them.

The event loop changes it. Flight threads read it, so each dictionary they use is replaced, never modified.
"""

from __future__ import annotations

from typing import Final

from evenkeel.wire.socket_messages import Role
from evenkeel_store.engine.group_state import Group

__all__ = ["OpenGroups"]

_NO_ROLE: Final = Role(False, 0)


class OpenGroups:
    """Open groups by partition, with the replica and the role of each."""

    def __init__(self, groups: dict[int, Group]) -> None:
        """`groups` are all groups of the engine, open or not."""
        self._groups = groups
        self._replicas: dict[int, int] = {}
        self._by_partition: dict[tuple[str, int], int] = {}
        self._roles: dict[int, Role] = {}

    def find(self, table: str, partition: int) -> Group | None:
        """Return the group of a partition; None if it is not open here."""
        number = self._by_partition.get((table, partition))
        return None if number is None else self._groups.get(number)

    def tables(self) -> set[str]:
        """Return the keys of the tables that have a partition open here."""
        return {table for table, _ in self._by_partition}

    def of_table(self, table: str = "") -> list[Group]:
        """Return the open groups of one table, or of all tables."""
        numbers = [number for (key, _), number in self._by_partition.items() if table in ("", key)]
        found = [self._groups.get(number) for number in numbers]
        return [group for group in found if group is not None]

    def replicas(self) -> dict[int, int]:
        """Return the replica id of each open group."""
        return dict(self._replicas)

    def led(self) -> list[int]:
        """Return the open groups that this store leads."""
        return [number for number in self._replicas if self.role(number).leader]

    def role(self, group: int) -> Role:
        """Return the role that the sidecar last reported."""
        return self._roles.get(group, _NO_ROLE)

    def set_role(self, group: int, role: Role) -> None:
        """Record the role that the sidecar reports."""
        self._roles[group] = role

    def clear_roles(self) -> None:
        """Forget all roles: the sidecar is disconnected."""
        self._roles.clear()

    def add(self, group: int, replica: int, *, table: str, partition: int) -> None:
        """Record that a group is open."""
        self._replicas[group] = replica
        self._by_partition = {**self._by_partition, (table, partition): group}

    def remove(self, group: int, replica: int) -> bool:
        """Record that a replica is closed; False if another replica of the group is open."""
        if self._replicas.get(group) != replica:
            return False
        del self._replicas[group]
        self._by_partition = {place: number for place, number in self._by_partition.items() if number != group}
        self._roles.pop(group, None)
        return True
