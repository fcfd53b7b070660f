"""A session on a namespace of Kubernetes; every request goes through the API server.

Commands write annotations and RebalancePlans; the operator acts on them.
"""

from __future__ import annotations

import asyncio
import copy
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

from evenkeel.cli.cluster_session import PreviewedMove, PreviewedPlan
from evenkeel.cli.target_cluster import KubeTarget
from evenkeel.errors import (
    ApiConflictError,
    ApiForbiddenError,
    ApiNotFoundError,
    InvalidInputError,
)
from evenkeel.kube.kube_client import Kube
from evenkeel.kube.kubeconfig import find_access
from evenkeel.kube.object_kinds import REBALANCE_PLAN, RESOURCE_KINDS, Object
from evenkeel.model.partitionassignment import PartitionAssignment
from evenkeel.model.rebalanceplan import RebalancePlan, RebalancePlanStatus, WhatIf
from evenkeel.model.resource_base import API_VERSION
from evenkeel.model.resource_loading import Resource, parse
from evenkeel.model.table import Table
from evenkeel.model.update_rules import validate_update
from evenkeel.model.views import SLICE, slice_name
from evenkeel.reconcile.plan_status import TABLE_LABEL, plan_name

__all__ = ["MANAGER", "KubeResources", "KubeSession", "kube_session"]

MANAGER: Final = "kubectl-evenkeel"
_TRIES: Final = 10
_FEW_SLICES: Final = 4
_POLL_SECONDS: Final = 0.2
_TIMEOUT: Final = 30.0
"""How long the operator may take to answer a dry run."""
R = TypeVar("R", bound=Resource)


class KubeResources:
    """The resources of a namespace; implements `evenkeel.cli.cluster_session.Resources`."""

    def __init__(self, kube: Kube, namespace: str) -> None:
        self._kube = kube
        self._namespace = namespace

    async def get(self, kind: type[R], name: str) -> R | None:
        """Return a resource, or None where there is none of that name."""
        subject = await self._kube.get(RESOURCE_KINDS[kind], name, self._namespace)
        return None if subject is None else _read(kind, subject)

    async def need(self, kind: type[R], name: str) -> R:
        """Return a resource; raise InvalidInputError, which lists the existing ones, where there is none."""
        found = await self.get(kind, name)
        if found is None:
            existing = ", ".join(subject["metadata"]["name"] for subject in await self._list(kind)) or "there are none"
            raise InvalidInputError(
                f"{kind.__name__}: got {name!r}; allowed: one that exists in namespace {self._namespace} ({existing})"
            )
        return found

    async def all_of(self, kind: type[R]) -> list[R]:
        """Return all resources of a kind."""
        return [_read(kind, subject) for subject in await self._list(kind)]

    async def assignments(self, table: str) -> list[PartitionAssignment]:
        """Return the PartitionAssignments of a table, in order."""
        spec = (await self.need(Table, table)).spec
        names = [slice_name(table, first) for first in range(0, spec.partitions, SLICE)]
        if len(names) <= _FEW_SLICES:
            found = [await self.get(PartitionAssignment, name) for name in names]
            return [one for one in found if one is not None]
        listed = [one for one in await self._list(PartitionAssignment) if one["spec"].get("table") == table]
        return sorted((_read(PartitionAssignment, one) for one in listed), key=lambda one: one.spec.from_)

    async def change(self, kind: type[R], name: str, edit: Callable[[dict[str, Any]], None]) -> R:
        """Edit the document of a resource; raise InvalidInputError where it is missing or the edit is not allowed."""
        for _ in range(_TRIES):
            before = await self._kube.get(RESOURCE_KINDS[kind], name, self._namespace)
            if before is None:
                await self.need(kind, name)
                continue
            after = copy.deepcopy(before)
            edit(after)
            validate_update(_read(kind, before), _read(kind, after))
            patch = _difference(before, after)
            if not patch:
                return _read(kind, before)
            patch.setdefault("metadata", {})["resourceVersion"] = before["metadata"]["resourceVersion"]
            try:
                return _read(kind, await self._kube.merge(RESOURCE_KINDS[kind], name, self._namespace, patch))
            except ApiConflictError:
                continue
        raise ApiConflictError(f"{kind.__name__} {name}: {_TRIES} updates in a row conflicted with others; retry later")

    async def _list(self, kind: type[object]) -> list[Object]:
        try:
            return (await self._kube.list(RESOURCE_KINDS[kind], self._namespace)).items
        except ApiNotFoundError:
            raise InvalidInputError(
                f"the API server does not serve {RESOURCE_KINDS[kind].plural}.evenkeel.dev: install Evenkeel "
                "(helm install evenkeel charts/evenkeel) or select another --context"
            ) from None


class KubeSession:
    """A connection to a namespace; implements `evenkeel.cli.cluster_session.Session`."""

    program = "kubectl evenkeel"

    def __init__(self, kube: Kube, namespace: str) -> None:
        self.kube = kube
        self.namespace = namespace
        self.resources = KubeResources(kube, namespace)

    async def preview(self, table: Table, what_if: WhatIf) -> PreviewedPlan:
        """Return the plan that the operator computes for a dry run; the RebalancePlan is deleted afterwards."""
        created = await self.kube.create(_dry_run(table, what_if))
        name = created["metadata"]["name"]
        try:
            status = await self._answer(name)
        finally:
            await self.kube.delete(REBALANCE_PLAN, name, self.namespace)
        if status.state == "Failed":
            raise InvalidInputError(
                "; ".join(dict.fromkeys(one.message for one in status.conditions if one.message))
                or "the operator could not compute a plan"
            )
        return await self._previewed(table, status)

    async def _answer(self, name: str) -> RebalancePlanStatus:
        deadline = time.monotonic() + _TIMEOUT
        while True:
            found = await self.resources.need(RebalancePlan, name)
            if found.status is not None and found.status.state in ("DryRun", "Failed"):
                return found.status
            if time.monotonic() > deadline:
                raise InvalidInputError(
                    f"the operator did not answer within {_TIMEOUT:g} s: check that it is running and watches "
                    f"namespace {self.namespace}; see `kubectl get pods --all-namespaces "
                    "-l app.kubernetes.io/name=evenkeel`"
                )
            await asyncio.sleep(_POLL_SECONDS)

    async def _previewed(self, table: Table, status: RebalancePlanStatus) -> PreviewedPlan:
        newest = table.status.plan if table.status is not None else 0
        same = bool(newest) and table.status is not None and table.status.plan_hash == status.hash
        waiting = await self.resources.get(RebalancePlan, plan_name(table.metadata.name, newest)) if same else None
        return PreviewedPlan(
            number=newest if same else newest + 1,
            hash=status.hash,
            same_as=newest if same else None,
            awaits_approval=waiting is not None
            and waiting.status is not None
            and waiting.status.state == "AwaitingApproval",
            totals=status.totals,
            moves=[
                PreviewedMove(move.partition, move.source or None, move.target or None, move.bytes, move.reason)
                for move in status.moves
            ],
        )


@asynccontextmanager
async def kube_session(target: KubeTarget) -> AsyncIterator[KubeSession]:
    """Connect to a namespace."""
    access = await find_access(kubeconfig=target.kubeconfig, context=target.context, namespace=target.namespace)
    kube = Kube(access.configuration, manager=MANAGER)
    try:
        yield KubeSession(kube, access.namespace)
    except ApiForbiddenError as error:
        raise ApiForbiddenError(
            f"{error}; reading needs the role `view` in the namespace, changes need `edit`", status=error.status
        ) from None
    finally:
        await kube.close()


def _dry_run(table: Table, what_if: WhatIf) -> Object:
    name, metadata = table.metadata.name, table.metadata
    owner = {"apiVersion": API_VERSION, "kind": "Table", "name": name, "uid": metadata.uid}
    assumptions = what_if.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_defaults=True)
    return {
        "apiVersion": API_VERSION,
        "kind": "RebalancePlan",
        "metadata": {
            "name": f"{name}-what-if-{secrets.token_hex(4)}",
            "namespace": metadata.namespace,
            "labels": {TABLE_LABEL: name},
            "ownerReferences": [owner],
        },
        "spec": {"table": name, "dryRun": True, **({"whatIf": assumptions} if assumptions else {})},
    }


def _read(kind: type[R], subject: Object) -> R:
    found = parse(subject, f"{subject['kind']} {subject['metadata']['namespace']}/{subject['metadata']['name']}")
    assert isinstance(found, kind)
    return found


def _difference(before: Object, after: Object) -> Object:
    """Return the JSON merge patch that turns `before` into `after`."""
    patch: Object = {key: None for key in before if key not in after}
    for key, value in after.items():
        old = before.get(key)
        if isinstance(value, dict) and isinstance(old, dict):
            if inner := _difference(old, value):
                patch[key] = inner
        elif value != old or key not in before:
            patch[key] = value
    return patch
