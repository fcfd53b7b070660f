"""Runs one table controller (`evenkeel.controller`) for each StoreCluster."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, NamedTuple

from evenkeel.controller.controller import Controller
from evenkeel.errors import FencedError
from evenkeel.metastore.metastore_api import KeyValue, Metastore
from evenkeel.metastore.operator_epoch import Epoch
from evenkeel.model.storecluster import StoreCluster, StoreClusterStatus
from evenkeel.protocol.keys import Keys
from evenkeel_operator.kube.object_cache import Key
from evenkeel_operator.reconcilers.kube_resources import KubeResources

__all__ = ["ClusterControllers"]

log = logging.getLogger(__name__)

_RESTART_SECONDS: Final = 5.0


class _Running(NamedTuple):
    metastore: Metastore
    resources: KubeResources
    controller: Controller
    task: asyncio.Task[None]


class ClusterControllers:
    """Starts, restarts and stops controllers."""

    def __init__(
        self,
        *,
        holder: str,
        metastore: Callable[[StoreCluster], Awaitable[Metastore]],
        resources: Callable[[Key], KubeResources],
        fenced: Callable[[FencedError], None],
    ) -> None:
        """`fenced` is called when another operator has taken over."""
        self._holder = holder
        self._metastore = metastore
        self._resources = resources
        self._fenced = fenced
        self._running: dict[Key, _Running] = {}

    async def ensure(self, cluster: StoreCluster) -> None:
        """Start the controller of a StoreCluster; restart it if its connection to etcd has changed."""
        key = (cluster.metadata.namespace, cluster.metadata.name)
        metastore = await self._metastore(cluster)
        if key in self._running:
            if self._running[key].metastore is metastore:
                return
            await self.stop(key)
        resources = self._resources(key)
        keys = Keys(namespace=cluster.metadata.namespace, store_cluster=cluster.metadata.name)
        controller = Controller(metastore, keys=keys, resources=resources, holder=self._holder)
        task = asyncio.create_task(self._run(key, controller), name=f"controller of {cluster.key}")
        self._running[key] = _Running(metastore, resources, controller, task)

    async def stop(self, key: Key) -> None:
        """Stop the controller of a StoreCluster, if it runs."""
        running = self._running.pop(key, None)
        if running is not None:
            running.task.cancel()
            await asyncio.gather(running.task, return_exceptions=True)

    async def close(self) -> None:
        """Stop all controllers."""
        for key in list(self._running):
            await self.stop(key)

    def notify(self, key: Key, table: str | None = None) -> None:
        """Notify a controller that a table has changed, or (None) something that concerns all its tables."""
        if key in self._running:
            self._running[key].resources.notify(table)

    def last_status(self, key: Key) -> StoreClusterStatus | None:
        """Return the status that the controller last wrote for its StoreCluster."""
        return self._running[key].resources.last_status if key in self._running else None

    def assignments(self, key: Key) -> Iterable[KeyValue] | None:
        """Return every key that places a partition on stores, now or planned; None if etcd is not followed."""
        return self._running[key].controller.assignments() if key in self._running else None

    def following(self, key: Key) -> bool:
        """Whether the controller follows the StoreCluster's own etcd, so that a missing key means absence."""
        return key in self._running and self._running[key].controller.assignments() is not None

    def epoch(self, key: Key) -> Epoch | None:
        """Return the epoch that fences writes for a StoreCluster; None before the controller has acquired it."""
        return self._running[key].controller.epoch if key in self._running else None

    def problems(self) -> dict[Key, str]:
        """Return, by StoreCluster, why its controller cannot work at the moment."""
        return {key: found.controller.problem for key, found in self._running.items() if found.controller.problem}

    def dropped(self) -> int:
        """Return the number of deleted tables whose data is kept."""
        return sum(found.controller.dropped for found in self._running.values())

    def busy(self) -> int:
        """Return the number of controllers with work to do."""
        return sum(not found.controller.idle for found in self._running.values())

    def __len__(self) -> int:
        return len(self._running)

    async def _run(self, key: Key, controller: Controller) -> None:
        """Run a controller, and restart it after a failure: its state is in the metastore."""
        while True:
            try:
                await controller.run()
            except FencedError as error:
                self._fenced(error)
                return
            except Exception:
                log.exception("the controller of %s/%s failed; restarting it in %g s", *key, _RESTART_SECONDS)
            await asyncio.sleep(_RESTART_SECONDS)
