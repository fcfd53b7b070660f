"""A session on a local cluster, whose resources are keys in its etcd."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from evenkeel.cli.cluster_session import PreviewedMove, PreviewedPlan
from evenkeel.cli.target_cluster import LocalTarget
from evenkeel.driver import drive
from evenkeel.errors import InvalidInputError
from evenkeel.local.cluster_directory import Layout, default_directory
from evenkeel.local.local_resources import NAMESPACE, LocalResources
from evenkeel.metastore.etcd_metastore import EtcdMetastore
from evenkeel.metastore.etcd_settings import EtcdSettings
from evenkeel.metastore.metastore_api import Metastore
from evenkeel.metastore.operator_epoch import Epoch
from evenkeel.model.rebalanceplan import WhatIf
from evenkeel.model.storecluster import StoreCluster
from evenkeel.model.table import Table
from evenkeel.protocol.keys import Keys
from evenkeel.protocol.records import PlanState, StoreRecord, decode
from evenkeel.rebalancers.rebalancer_process import FOLDERS
from evenkeel.reconcile.desired_table import desired_table, table_key
from evenkeel.reconcile.plan_status import CopyCosts, plan_totals
from evenkeel.reconcile.planning import preview_table
from evenkeel.reconcile.store_reports import Reports
from evenkeel.reconcile.what_if import what_if_stores, what_if_table

__all__ = ["LocalSession", "layout_of", "local_session"]


class LocalSession:
    """A connection to a local cluster; implements `evenkeel.cli.cluster_session.Session`."""

    program = "evenkeel"

    def __init__(self, layout: Layout, metastore: Metastore) -> None:
        self.layout = layout
        self.metastore = metastore
        self.resources = LocalResources(metastore)

    def keys(self, store_cluster: str) -> Keys:
        """Return the metastore keys of a StoreCluster."""
        return Keys(namespace=NAMESPACE, store_cluster=store_cluster)

    async def key_of(self, table: Table) -> str:
        """Return the key of a table's data; an undeleted table keeps the key of the deleted Table."""
        kv = await self.metastore.get(self.keys(table.spec.store_cluster).restored(table_key(table)))
        return table_key(table) if kv is None else decode(str, kv.value, key=kv.key)

    async def preview(self, table: Table, what_if: WhatIf) -> PreviewedPlan:
        """Return the plan under the assumptions of `what_if`, computed in this process."""
        name, cluster = table.metadata.name, await self.resources.get(StoreCluster, table.spec.store_cluster)
        imagined, keys, key = (
            what_if_table(table, what_if),
            self.keys(table.spec.store_cluster),
            await self.key_of(table),
        )
        requests = preview_table(
            desired_table(imagined, await self.resources.assignments(name)),
            keys=keys,
            table=key,
            imagine=lambda stores: what_if_stores(stores, what_if, store_cluster=table.spec.store_cluster),
        )
        preview = await drive(requests, metastore=self.metastore, epoch=Epoch("", "preview", 0))
        reports = Reports(keys, (await self.metastore.range(keys.load(""))).kvs)
        costs = CopyCosts(reports.sizes(key), reports.rates())
        newest = preview.newest
        moves = [
            PreviewedMove(
                *(move.partition, move.source, move.target),
                costs.sizes.get(move.partition) if move.target is not None else 0,
                move.reason,
            )
            for move in preview.moves
        ]
        return PreviewedPlan(
            number=preview.plan.n,
            hash=preview.plan.head.hash,
            same_as=newest.n if newest is not None else None,
            awaits_approval=newest is not None and newest.state is PlanState.AWAITING_APPROVAL,
            totals=plan_totals(preview.plan, preview.moves, costs, table=imagined, cluster=cluster),
            moves=moves,
        )

    async def endpoints(self, store_cluster: str) -> list[str]:
        """Return the client endpoints of a StoreCluster."""
        found = await self.metastore.range(self.keys(store_cluster).stores())
        addresses = [decode(StoreRecord, kv.value, key=kv.key).flight for kv in found.kvs]
        known = [address for address in addresses if address]
        if not known:
            await self.resources.need(StoreCluster, store_cluster)
            raise InvalidInputError(
                f"StoreCluster {store_cluster}: no store accepts clients; see `evenkeel local status`"
            )
        return known


def layout_of(directory: Path | None) -> Layout:
    """Return the layout of a local cluster; None selects the default directory."""
    return Layout(directory if directory is not None else default_directory())


@asynccontextmanager
async def local_session(target: LocalTarget) -> AsyncIterator[LocalSession]:
    """Connect to a local cluster."""
    layout = layout_of(target.directory)
    running = layout.running()
    if running is None:
        state = "is starting or stopping; wait, or run" if layout.is_held() else "is not running: start it with"
        raise InvalidInputError(f"the local cluster in {layout.root} {state} `evenkeel local up`")
    os.environ[FOLDERS] = str(layout.rebalancers)
    async with EtcdMetastore(EtcdSettings(endpoints=(running.etcd,))) as metastore:
        yield LocalSession(layout, metastore)
