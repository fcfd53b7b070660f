"""What a command works with: the resources of the cluster that is meant, and what that alone can answer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple, Protocol, TypeVar

from evenkeel.cli.place import Cluster, Local, Place
from evenkeel.model.loading import Resource
from evenkeel.model.partitionassignment import PartitionAssignment
from evenkeel.model.rebalanceplan import PlanTotals, WhatIf
from evenkeel.model.table import Table

__all__ = ["PreviewedMove", "PreviewedPlan", "Resources", "Session", "in_session", "watching"]

Result = TypeVar("Result")
R = TypeVar("R", bound=Resource)


class Resources(Protocol):
    """The resources of a cluster, as verbs ask for them."""

    async def get(self, kind: type[R], name: str) -> R | None:
        """One resource, or None."""
        ...

    async def need(self, kind: type[R], name: str) -> R:
        """One resource; InvalidInputError, with what there is, where there is none of that name."""
        ...

    async def all_of(self, kind: type[R]) -> list[R]:
        """All resources of a kind."""
        ...

    async def assignments(self, table: str) -> list[PartitionAssignment]:
        """The PartitionAssignments of a table, in order."""
        ...

    async def change(self, kind: type[R], name: str, edit: Callable[[dict[str, Any]], None]) -> R:
        """Edit a resource's document; InvalidInputError where there is none, or the change is not allowed."""
        ...


class PreviewedMove(NamedTuple):
    """One replica's way, as a plan would have it."""

    partition: int
    source: str | None
    target: str | None
    bytes: int | None
    """None where nobody knows."""
    reason: str


class PreviewedPlan(NamedTuple):
    """What would be done."""

    number: int
    hash: str
    same_as: int | None
    """The newest plan, where this is no other."""
    awaits_approval: bool
    totals: PlanTotals
    moves: Sequence[PreviewedMove]
    """Some of them, where there are very many."""


class Session(Protocol):
    """A cluster, connected."""

    @property
    def program(self) -> str:
        """What the command is called that somebody typed."""
        ...

    @property
    def resources(self) -> Resources:
        """What there is."""
        ...

    async def preview(self, table: Table, what_if: WhatIf) -> PreviewedPlan:
        """What would be planned for a table, or would be if all were as imagined; changes nothing."""
        ...


def _session(place: Place) -> AbstractAsyncContextManager[Session]:
    # Neither half is there for the other: one needs etcd's client, the other Kubernetes'.
    match place:
        case Local():
            from evenkeel.cli.local_session import local_session  # noqa: PLC0415

            return local_session(place)
        case Cluster():
            from evenkeel.cli.kube_session import kube_session  # noqa: PLC0415

            return kube_session(place)


def in_session(place: Place, work: Callable[[Any], Awaitable[Result]]) -> Result:
    """Connect, do something, and disconnect."""

    async def run() -> Result:
        async with _session(place) as session:
            return await work(session)

    return asyncio.run(run())


def watching(place: Place, work: Callable[[Any], Awaitable[None]]) -> None:
    """The same for something that may go on until Ctrl-C, which is then its good end."""
    with contextlib.suppress(KeyboardInterrupt):
        in_session(place, work)
