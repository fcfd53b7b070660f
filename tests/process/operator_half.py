"""Runs a controller of the release of Evenkeel that the interpreter has.

It is a script, not a module of the tests, so that an interpreter of the previous release can run it:
`python -P operator_half.py ENDPOINT HOLDER`.
"""

from __future__ import annotations

import asyncio
import sys

from evenkeel.controller.controller import Controller
from evenkeel.protocol.keys import Keys

try:
    from evenkeel.local.local_resources import ClusterResources, LocalResources
    from evenkeel.metastore.etcd_metastore import EtcdMetastore
    from evenkeel.metastore.etcd_settings import EtcdSettings
except ModuleNotFoundError:  # the previous release's names
    from evenkeel.local.resources import (  # type: ignore[import-not-found,no-redef]
        ClusterResources,
        LocalResources,
    )
    from evenkeel.metastore.etcd import EtcdMetastore  # type: ignore[import-not-found,no-redef]
    from evenkeel.metastore.settings import EtcdSettings  # type: ignore[import-not-found,no-redef]


async def run(endpoint: str, holder: str) -> None:
    """Reconcile the tables of the StoreCluster `main` until another process takes over."""
    async with EtcdMetastore(EtcdSettings(endpoints=(endpoint,))) as metastore:
        keys = Keys(namespace="default", store_cluster="main")
        resources = ClusterResources(LocalResources(metastore), "main")
        await Controller(metastore, keys=keys, resources=resources, holder=holder).run()


if __name__ == "__main__":
    asyncio.run(run(*sys.argv[1:]))
