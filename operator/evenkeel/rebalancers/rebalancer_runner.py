"""Compute and validate an assignment in the Table's mode.

This module writes nothing. A failure is a RebalancerError (a class failed or returned an invalid assignment) or a
PlanningError (no assignment satisfies the hard rules). In both cases the last valid assignment stays in force, and the
message becomes the Table's Degraded condition. Computations do not block the event loop: users' classes run in a child
process, everything else in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from evenkeel.errors import RebalancerError
from evenkeel.model.views import Assignment, Choice, CurrentState, Mode, StoresView, TableView
from evenkeel.rebalancers.assignment_validator import validate
from evenkeel.rebalancers.bundled_rebalancers import Balanced, Mod, Pinned
from evenkeel.rebalancers.rebalancer_api import RebalanceContext, Rebalancer, RebalanceResult
from evenkeel.rebalancers.rebalancer_process import Limits, compute_in_child
from evenkeel.rebalancers.rendezvous import Rendezvous
from evenkeel.rebalancers.user_choices import Customized, SemiAuto

__all__ = ["BUNDLED", "rebalance"]

BUNDLED: Mapping[str, type[Rebalancer]] = {
    "balanced": Balanced,
    "rendezvous": Rendezvous,
    "mod": Mod,
    "pinned": Pinned,
}


async def rebalance(
    table: TableView,
    *,
    mode: Mode = "FullAuto",
    class_name: str | None = None,
    previous: Assignment,
    stores: StoresView,
    current: CurrentState | None = None,
    choices: Mapping[int, Choice] | None = None,
    context: bytes | None = None,
    limits: Limits | None = None,
) -> RebalanceResult:
    """Return the validated assignment of `mode` and `class_name` (None: the mode's default).

    `choices` are the users' PartitionAssignments, for SemiAuto and Customized. `context` is the context of the table's
    last accepted result.
    """
    current = current or CurrentState()
    if mode == "UserDefined":
        name = _user_class(class_name)
        assignment, kept = await compute_in_child(
            name,
            table,
            previous=previous,
            stores=stores,
            current=current,
            context=context,
            limits=limits or Limits(),
        )
        await asyncio.to_thread(_validate, name, table, stores, assignment)
        return RebalanceResult(assignment=assignment, context=kept)
    rebalancer = _rebalancer(mode, class_name, choices or {})
    keeps = previous if mode in ("SemiAuto", "Customized") else None
    return await asyncio.to_thread(
        _compute, rebalancer, table, previous=previous, stores=stores, current=current, context=context, keeps=keeps
    )


def _user_class(class_name: str | None) -> str:
    if class_name is None or ":" not in class_name:
        raise RebalancerError(f"mode UserDefined: class: got {class_name}; allowed: package.module:Name")
    return class_name


def _rebalancer(mode: Mode, class_name: str | None, choices: Mapping[int, Choice]) -> Rebalancer:
    if mode == "SemiAuto":
        return SemiAuto(choices)
    if mode == "Customized":
        return Customized(choices)
    name = class_name or "balanced"
    if name not in BUNDLED:
        raise RebalancerError(f"mode FullAuto: class: got {name}; allowed: {', '.join(BUNDLED)}")
    return BUNDLED[name]()


def _compute(
    rebalancer: Rebalancer,
    table: TableView,
    *,
    previous: Assignment,
    stores: StoresView,
    current: CurrentState,
    context: bytes | None,
    keeps: Assignment | None,
) -> RebalanceResult:
    run_context = RebalanceContext(table.config, context)
    rebalancer.init(run_context)
    assignment = rebalancer.compute(table, previous, stores, current)
    validate(table, stores, assignment, keeps=keeps)
    return RebalanceResult(assignment=assignment, context=run_context.saved)


def _validate(class_name: str, table: TableView, stores: StoresView, assignment: Assignment) -> None:
    try:
        validate(table, stores, assignment)
    except RebalancerError as error:
        raise RebalancerError(f"class {class_name} returned an invalid assignment: {error}") from None
