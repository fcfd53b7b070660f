"""The requests that a reconciliation yields to its driver, and their answers."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

import msgspec

from evenkeel.metastore.metastore_api import KeyValue, Txn
from evenkeel.model.views import Assignment, Choice, CurrentState, StoresView, TableView
from evenkeel.protocol.plan_run import PlanRun
from evenkeel.reconcile.known_stores import KnownStores

__all__ = ["Carry", "Commit", "Found", "Place", "Read", "Request", "Requests"]


class Read(msgspec.Struct, frozen=True):
    """Read everything under these prefixes at one revision; answered by `Found`."""

    prefixes: tuple[str, ...]


class Found(msgspec.Struct, frozen=True):
    """Keys at one revision."""

    revision: int
    kvs: dict[str, KeyValue]
    stores: KnownStores | None = None
    """All stores, if they are already decoded; then `kvs` need not have them."""


class Commit(msgspec.Struct, frozen=True):
    """Run one transaction; answered by its `TxnResult`."""

    txn: Txn


class Carry(msgspec.Struct, frozen=True):
    """Run all batches of a plan concurrently; answered by None when the run is done."""

    run: PlanRun


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Run the table's rebalancer; answered by a validated `RebalanceResult`."""

    table: TableView
    mode: str
    class_name: str | None
    previous: Assignment
    stores: StoresView
    current: CurrentState
    choices: dict[int, Choice]
    context: bytes | None


Request = Read | Commit | Carry | Place
T = TypeVar("T")
Requests = Generator[Request, Any, T]
"""A reconciliation: yields requests, is sent their answers, and returns its outcome."""
