"""The session a command works with: the resources and plan previews of one cluster."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple, Protocol, TypeVar

from evenkeel.cli.target_cluster import KubeTarget, LocalTarget, Target
from evenkeel.model.partitionassignment import PartitionAssignment
from evenkeel.model.rebalanceplan import PlanTotals, WhatIf
from evenkeel.model.resource_loading import Resource
from evenkeel.model.table import Table

__all__ = ["PreviewedMove", "PreviewedPlan", "Resources", "Session", "run_in_session", "run_until_interrupted"]

Result = TypeVar("Result")
R = TypeVar("R", bound=Resource)


class Resources(Protocol):
    """The resources of a cluster."""

    async def get(self, kind: type[R], name: str) -> R | None:
        """Return a resource, or None where there is none of that name."""
        ...

    async def need(self, kind: type[R], name: str) -> R:
        """Return a resource; raise InvalidInputError, which lists the existing ones, where there is none."""
        ...

    async def all_of(self, kind: type[R]) -> list[R]:
        """Return all resources of a kind."""
        ...

    async def assignments(self, table: str) -> list[PartitionAssignment]:
        """Return the PartitionAssignments of a table, in order."""
        ...

    async def change(self, kind: type[R], name: str, edit: Callable[[dict[str, Any]], None]) -> R:
        """Edit the document of a resource; raise InvalidInputError where it is missing or the edit is not allowed."""
        ...


class PreviewedMove(NamedTuple):
    """One move of a previewed plan."""

    partition: int
    source: str | None
    target: str | None
    bytes: int | None
    """None where the size is unknown."""
    reason: str


class PreviewedPlan(NamedTuple):
    """The plan that the planner would make now."""

    number: int
    hash: str
    same_as: int | None
    """Number of the newest plan, if this plan is identical to it."""
    awaits_approval: bool
    totals: PlanTotals
    moves: Sequence[PreviewedMove]
    """The first moves of a plan that has very many."""


class Session(Protocol):
    """A connection to a cluster."""

    @property
    def program(self) -> str:
        """The command that the user typed, for hints in messages."""
        ...

    @property
    def resources(self) -> Resources:
        """The resources of the cluster."""
        ...

    async def preview(self, table: Table, what_if: WhatIf) -> PreviewedPlan:
        """Return the plan for a table under the assumptions of `what_if`; changes nothing."""
        ...


def _session(target: Target) -> AbstractAsyncContextManager[Session]:
    match target:
        case LocalTarget():
            from evenkeel.cli.local_session import local_session  # noqa: PLC0415 - needs etcd's client

            return local_session(target)
        case KubeTarget():
            from evenkeel.cli.kube_session import kube_session  # noqa: PLC0415 - needs Kubernetes' client

            return kube_session(target)


def run_in_session(target: Target, work: Callable[[Any], Awaitable[Result]]) -> Result:
    """Connect to the target, run `work`, and disconnect."""

    async def run() -> Result:
        async with _session(target) as session:
            return await work(session)

    return asyncio.run(run())


def run_until_interrupted(target: Target, work: Callable[[Any], Awaitable[None]]) -> None:
    """Run `work` in a session until it returns or the user presses Ctrl-C, which is not an error."""
    with contextlib.suppress(KeyboardInterrupt):
        run_in_session(target, work)
