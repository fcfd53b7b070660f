"""A controller for the tables of each StoreCluster, for as long as the StoreCluster is there."""

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

__all__ = ["Controllers"]

log = logging.getLogger(__name__)

_RESTART_SECONDS: Final = 5.0


class _Running(NamedTuple):
    metastore: Metastore
    resources: KubeResources
    controller: Controller
    task: asyncio.Task[None]


class Controllers:
    """Starts, restarts and ends controllers."""

    def __init__(
        self,
        *,
        holder: str,
        metastore: Callable[[StoreCluster], Awaitable[Metastore]],
        resources: Callable[[Key], KubeResources],
        fenced: Callable[[FencedError], None],
    ) -> None:
        """`deposed` is told when another operator has taken over."""
        self._holder = holder
        self._metastore = metastore
        self._resources = resources
        self._fenced = fenced
        self._running: dict[Key, _Running] = {}

    async def ensure(self, cluster: StoreCluster) -> None:
        """Have a controller for the StoreCluster, and another one where etcd is asked for in other words."""
        key = (cluster.metadata.namespace, cluster.metadata.name)
        metastore = await self._metastore(cluster)
        if key in self._running:
            if self._running[key].metastore is metastore:
                return
            await self.dismiss(key)
        resources = self._resources(key)
        keys = Keys(namespace=cluster.metadata.namespace, store_cluster=cluster.metadata.name)
        controller = Controller(metastore, keys=keys, resources=resources, holder=self._holder)
        task = asyncio.create_task(self._keep(key, controller), name=f"controller of {cluster.key}")
        self._running[key] = _Running(metastore, resources, controller, task)

    async def dismiss(self, key: Key) -> None:
        """End the controller of a StoreCluster, if there is one."""
        running = self._running.pop(key, None)
        if running is not None:
            running.task.cancel()
            await asyncio.gather(running.task, return_exceptions=True)

    async def close(self) -> None:
        """End all of them."""
        for key in list(self._running):
            await self.dismiss(key)

    def hear(self, key: Key, table: str | None = None) -> None:
        """A table of the StoreCluster has changed, or something that concerns all of them."""
        if key in self._running:
            self._running[key].resources.hear(table)

    def last_status(self, key: Key) -> StoreClusterStatus | None:
        """What the controller last said of the StoreCluster."""
        return self._running[key].resources.last_status if key in self._running else None

    def assignments(self, key: Key) -> Iterable[KeyValue] | None:
        """Every key that says who holds or will hold a partition of the StoreCluster's; None where nobody watches."""
        return self._running[key].controller.assignments() if key in self._running else None

    def following(self, key: Key) -> bool:
        """Whether the StoreCluster's own etcd is followed, so that what it does not name is not there."""
        return key in self._running and self._running[key].controller.assignments() is not None

    def epoch(self, key: Key) -> Epoch | None:
        """What writes for a StoreCluster have to compare; None where nobody is in charge of it yet."""
        return self._running[key].controller.epoch if key in self._running else None

    def problems(self) -> dict[Key, str]:
        """By StoreCluster: why its controller can do nothing at the moment."""
        return {key: found.controller.problem for key, found in self._running.items() if found.controller.problem}

    def dropped(self) -> int:
        """How many deleted tables there are whose data is kept."""
        return sum(found.controller.dropped for found in self._running.values())

    def busy(self) -> int:
        """How many have something to look at now."""
        return sum(not found.controller.at_rest for found in self._running.values())

    def __len__(self) -> int:
        return len(self._running)

    async def _keep(self, key: Key, controller: Controller) -> None:
        """Run the controller again whenever it fails: what it knew is in the metastore."""
        while True:
            try:
                await controller.run()
            except FencedError as error:
                self._fenced(error)
                return
            except Exception:
                log.exception("the controller of %s/%s failed and starts again", *key)
            await asyncio.sleep(_RESTART_SECONDS)
